#include "attribution/attribute.hpp"

#include <algorithm>
#include <iterator>
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
using Stack = std::span<const std::uint32_t>;

constexpr std::string_view kModulePrefix = "nn.Module: ";

// Modules in the name of one: paths would grow with the square of the depth.
constexpr std::size_t kMostModules = 100;

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
    at_allocation();
    at_forward_link();
    at_free(memory);
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
    sweep_stacks(events_, births, [&](std::uint32_t block, Stack stack) {
      result_.phase[block] = phase_of(events_, roles_, blocks_.thread[block], stack);
      result_.module[block] = module_of(stack);
      result_.source_line[block] = line_of(stack);
      bool in_backward = roles_.is_engine_thread(blocks_.thread[block]);
      std::int32_t numbered = -1;  // innermost span with a sequence number
      for (const std::uint32_t row : stack) {
        if (events_.kind[row] == SpanKind::host) result_.host[block] = 1;
        if (roles_[row] == Role::optimizer_step) step_end_[block] = std::max(step_end_[block], events_.end_ns[row]);
        if (events_.kind[row] != SpanKind::operation) continue;
        const auto operation = static_cast<std::int32_t>(row);
        result_.operation[block] = operation;
        std::int32_t& root = result_.root_operation[block];
        if (root < 0 || (roles_.is_engine(static_cast<std::size_t>(root)) && !roles_.is_engine(row))) root = operation;
        in_backward = in_backward || roles_[row] == Role::evaluate_function;
        if (events_.sequence_number[row] >= 0) numbered = operation;
      }
      if (in_backward && numbered >= 0) result_.forward_link[block] = links_.of(static_cast<std::size_t>(numbered));
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
    sweep_stacks(events_, links, [&](std::uint32_t block, Stack stack) {
      result_.module[block] = module_of(stack);
      if (const NameId line = line_of(stack); !line.is_none()) result_.source_line[block] = line;
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
    sweep_stacks(events_, deaths, [&](std::uint32_t block, Stack stack) {
      result_.free_phase[block] = phase_of(events_, roles_, thread_of_free(memory, block), stack);
    });
  }

  std::int32_t thread_of_free(const trace::MemoryTable& memory, std::size_t block) const {
    const std::int32_t event = blocks_.free_event[block];
    return event < 0 ? blocks_.thread[block] : memory.thread[static_cast<std::size_t>(event)];
  }

  NameId module_of(Stack stack) {
    if (has_modules_) {
      for (auto row = stack.rbegin(); row != stack.rend(); ++row) {
        if (events_.kind[*row] == SpanKind::module) return result_.modules.intern(trace_.names[events_.name[*row]]);
      }
      return {};
    }
    frames_.clear();
    std::ranges::copy_if(stack, std::back_inserter(frames_),
                         [&](std::uint32_t row) { return events_.kind[row] == SpanKind::module_frame; });
    path_.clear();
    for (std::size_t level = 0; level < frames_.size(); ++level) {
      if (!path_.empty()) path_ += '.';
      if (frames_.size() > kMostModules && level == kMostModules / 2) {
        path_ += "...";
        level = frames_.size() - kMostModules / 2 - 1;
        continue;
      }
      path_ += trace_.names[events_.name[frames_[level]]].substr(kModulePrefix.size());
    }
    return path_.empty() ? NameId{} : result_.modules.intern(path_);
  }

  NameId line_of(Stack stack) {
    const SpanKind wanted = has_lines_ ? SpanKind::line : SpanKind::user_frame;
    for (auto row = stack.rbegin(); row != stack.rend(); ++row) {
      if (events_.kind[*row] != wanted) continue;
      const std::string_view name = trace_.names[events_.name[*row]];
      return has_lines_ ? result_.lines.intern(name) : result_.lines.intern(line_of_frame(name));
    }
    return {};
  }

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
  std::vector<std::uint32_t> frames_;
  std::vector<Nanoseconds> step_end_;  // of the optimizer step that a block is born in
  Attribution result_;
};

}  // namespace

Attribution attribute(const trace::Trace& trace, const BlockTable& blocks, const NamedTensors& tensors) {
  return Attributor(trace, blocks).run(trace.memory, tensors);
}

}  // namespace xmem::attribution
