#include "attribution/attribute.hpp"

#include <algorithm>
#include <future>
#include <string>
#include <string_view>

#include "attribution/category.hpp"
#include "attribution/forward_links.hpp"
#include "attribution/stack_sweep.hpp"
#include "trace/parsing/frame_name.hpp"

namespace xmem::attribution {
namespace {

using blocks::BlockTable;
using trace::SpanKind;

constexpr std::string_view kModulePrefix = "nn.Module: ";

// Modules in the name of one: paths would grow with the square of the depth.
constexpr std::size_t kMostModules = 100;

// What the open spans of a thread say: rows of events, -1 for none.
struct Surroundings {
  OpenPhases phases;
  bool on_host = false;
  bool evaluates = false;       // inside of a node of the backward pass
  std::int32_t operation = -1;  // the innermost
  std::int32_t root = -1;       // the outermost that is not the engine's, if there is one
  std::int32_t numbered = -1;   // the innermost operation with a sequence number
  std::int32_t module = -1;     // the innermost span of a module
  std::int32_t line = -1;       // the innermost span of a line, or frame of the user's
  std::uint32_t frames = 0;     // how many of the open spans are frames of modules
  Nanoseconds step_end = 0;     // of the optimizer step
};

using Frames = std::vector<std::uint32_t>;  // open frames of modules, outermost first, and some that have closed

class Attributor {
 public:
  Attributor(const trace::Trace& trace, const BlockTable& blocks)
      : trace_(trace),
        events_(trace.events),
        blocks_(blocks),
        roles_(trace),
        iterations_(trace, roles_),
        links_(events_, roles_) {
    for (const SpanKind kind : events_.kind) {
      has_modules_ = has_modules_ || kind == SpanKind::module;
      has_lines_ = has_lines_ || kind == SpanKind::line;
    }
  }

  Attribution run(const trace::MemoryTable& memory, const NamedTensors& tensors) {
    const std::size_t size = blocks_.size();
    result_.optimizer_steps = iterations_.optimizer_steps();
    result_.operation.assign(size, -1);
    result_.root_operation.assign(size, -1);
    result_.forward_link.assign(size, -1);
    result_.phase.assign(size, Phase::other);
    result_.free_phase.assign(size, Phase::other);
    result_.iteration.assign(size, -1);
    result_.free_iteration.assign(size, -1);
    result_.module.assign(size, NameId{});
    result_.source_line.assign(size, NameId{});
    result_.host.assign(size, 0);
    step_end_.assign(size, 0);
    std::future<void> freed = std::async([&] { at_free(memory); });  // beside the others, of which it needs nothing
    at_allocation();
    at_forward_link();
    freed.get();
    categorize(blocks_, tensors, step_end_, result_);
    return std::move(result_);
  }

 private:
  void at_allocation() {
    std::vector<Instant> births;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if ((blocks_.flags[block] & blocks::kBornBefore) != 0) continue;
      births.push_back({blocks_.thread[block], blocks_.alloc_ns[block], static_cast<std::uint32_t>(block)});
      result_.iteration[block] = iterations_.at(blocks_.alloc_ns[block]);
    }
    Frames frames;
    sweep(births, frames, [&](std::uint32_t block, const Surroundings& open) {
      const bool on_engine = roles_.is_engine_thread(blocks_.thread[block]);
      result_.phase[block] = open.phases.phase(on_engine);
      result_.module[block] = module_of(open, frames);
      result_.source_line[block] = line_of(open);
      result_.host[block] = open.on_host ? 1 : 0;
      result_.operation[block] = open.operation;
      result_.root_operation[block] = open.root;
      step_end_[block] = open.step_end;
      if ((on_engine || open.evaluates) && open.numbered >= 0)
        result_.forward_link[block] = links_.of(static_cast<std::size_t>(open.numbered));
    });
  }

  // A backward block belongs to the module and the line of its forward operator.
  void at_forward_link() {
    std::vector<Instant> links;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if (result_.forward_link[block] < 0) continue;
      const auto row = static_cast<std::size_t>(result_.forward_link[block]);
      links.push_back({events_.thread[row], events_.begin_ns[row], static_cast<std::uint32_t>(block)});
    }
    Frames frames;
    sweep(links, frames, [&](std::uint32_t block, const Surroundings& open) {
      result_.module[block] = module_of(open, frames);
      if (const NameId line = line_of(open); !line.is_none()) result_.source_line[block] = line;
    });
  }

  void at_free(const trace::MemoryTable& memory) {
    std::vector<Instant> deaths;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if (blocks_.free_ns[block] == kNever) continue;
      result_.free_iteration[block] = iterations_.at(blocks_.free_ns[block]);
      const auto row = static_cast<std::uint32_t>(block);
      deaths.push_back({thread_of_free(memory, block), blocks_.free_ns[block], row});
    }
    Frames frames;
    sweep(deaths, frames, [&](std::uint32_t block, const Surroundings& open) {
      result_.free_phase[block] = open.phases.phase(roles_.is_engine_thread(thread_of_free(memory, block)));
    });
  }

  template <class Answer>
  void sweep(std::vector<Instant>& instants, Frames& frames, Answer answer) const {
    const auto enter = [&](Surroundings open, std::uint32_t row) {
      enter_span(open, frames, row);
      return open;
    };
    sweep_stacks<Surroundings>(events_, instants, enter, answer);
  }

  void enter_span(Surroundings& open, Frames& frames, std::uint32_t row) const {
    const SpanKind kind = events_.kind[row];
    const Role role = roles_[row];
    const auto at = static_cast<std::int32_t>(row);
    open.phases.enter(role, kind);
    if (role == Role::optimizer_step) open.step_end = std::max(open.step_end, events_.end_ns[row]);
    if (kind == (has_lines_ ? SpanKind::line : SpanKind::user_frame)) open.line = at;
    if (kind == SpanKind::host) open.on_host = true;
    if (kind == SpanKind::module) open.module = at;
    if (kind == SpanKind::module_frame) {
      frames.resize(open.frames);  // without those of spans that have closed
      frames.push_back(row);
      ++open.frames;
    }
    if (kind != SpanKind::operation) return;
    open.operation = at;
    if (open.root < 0 || (roles_.is_engine(static_cast<std::size_t>(open.root)) && !roles_.is_engine(row)))
      open.root = at;
    open.evaluates = open.evaluates || role == Role::evaluate_function;
    if (events_.sequence_number[row] >= 0) open.numbered = at;
  }

  std::int32_t thread_of_free(const trace::MemoryTable& memory, std::size_t block) const {
    const std::int32_t event = blocks_.free_event[block];
    return event < 0 ? blocks_.thread[block] : memory.thread[static_cast<std::size_t>(event)];
  }

  NameId module_of(const Surroundings& open, const Frames& frames) {
    if (has_modules_) return open.module < 0 ? NameId{} : result_.modules.intern(name_of(open.module));
    path_.clear();
    for (std::size_t level = 0; level < open.frames; ++level) {
      if (!path_.empty()) path_ += '.';
      if (open.frames > kMostModules && level == kMostModules / 2) {
        path_ += "...";
        level = open.frames - kMostModules / 2 - 1;
        continue;
      }
      path_ += trace_.names[events_.name[frames[level]]].substr(kModulePrefix.size());
    }
    return path_.empty() ? NameId{} : result_.modules.intern(path_);
  }

  NameId line_of(const Surroundings& open) {
    if (open.line < 0) return {};
    const std::string_view name = name_of(open.line);
    return has_lines_ ? result_.lines.intern(name) : result_.lines.intern(line_of_frame(name));
  }

  std::string_view name_of(std::int32_t row) const { return trace_.names[events_.name[static_cast<std::size_t>(row)]]; }

  // `PATH(LINE): FUNCTION` -> `PATH:LINE`.
  std::string_view line_of_frame(std::string_view name) {
    const std::size_t open = trace::python_file_end(name);
    const std::size_t close = name.find(')', open);
    path_.assign(name.substr(0, open)).append(":").append(name.substr(open + 1, close - open - 1));
    return path_;
  }

  const trace::Trace& trace_;
  const trace::EventTable& events_;
  const BlockTable& blocks_;
  const SpanRoles roles_;
  const Iterations iterations_;
  const ForwardLinks links_;
  bool has_modules_ = false;
  bool has_lines_ = false;
  std::string path_;
  std::vector<Nanoseconds> step_end_;  // of the optimizer step that a block is born in
  Attribution result_;
};

}  // namespace

Attribution attribute(const trace::Trace& trace, const BlockTable& blocks, const NamedTensors& tensors) {
  return Attributor(trace, blocks).run(trace.memory, tensors);
}

}  // namespace xmem::attribution
