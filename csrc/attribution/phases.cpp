#include "attribution/phases.hpp"

#include <algorithm>
#include <string_view>

namespace xmem::attribution {
namespace {

using trace::SpanKind;

constexpr std::string_view kEvaluates = "autograd::engine::evaluate_function";

// A node of autograd's graph by its name, such as `AddmmBackward`, `ReluBackward1` or `torch::autograd::CopySlices`.
bool is_node(std::string_view name) {
  if (name.starts_with("torch::autograd::")) return true;
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name.ends_with("Backward") && !name.starts_with("aten::");
}

Role annotation_role(std::string_view name) {
  if (name.starts_with("Optimizer.step#")) return Role::optimizer_step;
  if (name.starts_with("Optimizer.zero_grad#")) return Role::zero_grad;
  if (name.starts_with("enumerate(DataLoader)#")) return Role::load;
  return Role::none;
}

}  // namespace

SpanRoles::SpanRoles(const trace::Trace& trace) : events_(trace.events) {
  const auto name_of = [&](std::size_t id) { return trace.names[NameId{static_cast<std::int32_t>(id)}]; };
  // torch up to 1.9 writes no spans of the engine: there the nodes stand for themselves.
  bool has_engine = false;
  for (std::size_t row = 0; row < events_.size() && !has_engine; ++row) {
    has_engine = events_.kind[row] == SpanKind::operation && trace.names[events_.name[row]].starts_with(kEvaluates);
  }
  for (std::size_t id = 0; id < trace.names.size(); ++id) {
    const std::string_view name = name_of(id);
    const bool evaluates = has_engine ? name.starts_with(kEvaluates) : is_node(name);
    operator_role_.push_back(evaluates ? Role::evaluate_function : Role::none);
    annotation_role_.push_back(annotation_role(name));
    engine_.push_back(name.starts_with("autograd::engine::"));
  }
  if (has_engine) return;
  std::set<std::int32_t> seen;
  for (std::size_t row = 0; row < events_.size(); ++row) {  // by thread, then begin
    if (events_.kind[row] != SpanKind::operation || !seen.insert(events_.thread[row]).second) continue;
    if ((*this)[row] == Role::evaluate_function) engine_threads_.insert(events_.thread[row]);
  }
}

Role SpanRoles::operator[](std::size_t row) const {
  const auto name = static_cast<std::size_t>(events_.name[row].value);
  if (events_.kind[row] == SpanKind::operation) return operator_role_[name];
  return events_.kind[row] == SpanKind::annotation ? annotation_role_[name] : Role::none;
}

bool SpanRoles::is_engine(std::size_t row) const {
  return engine_[static_cast<std::size_t>(events_.name[row].value)];
}

void OpenPhases::enter(Role role, SpanKind kind) {
  step_ = step_ || role == Role::optimizer_step;
  zero_grad_ = zero_grad_ || role == Role::zero_grad;
  load_ = load_ || role == Role::load;
  backward_ = backward_ || role == Role::evaluate_function;
  forward_ = forward_ || kind == SpanKind::operation || kind == SpanKind::module || kind == SpanKind::module_frame;
}

Phase OpenPhases::phase(bool on_engine_thread) const {
  if (step_) return Phase::optimizer_step;
  if (zero_grad_) return Phase::zero_grad;
  if (load_) return Phase::load;
  if (backward_ || on_engine_thread) return Phase::backward;
  return forward_ ? Phase::forward : Phase::other;
}

Iterations::Iterations(const trace::Trace& trace, const SpanRoles& roles) {
  const trace::EventTable& events = trace.events;
  std::vector<Interval> profiler_steps;
  std::int32_t thread = -1;
  Nanoseconds step_end = 0;  // of the optimizer steps begun so far on the thread
  for (std::size_t row = 0; row < events.size(); ++row) {
    if (events.kind[row] == SpanKind::iteration) spans_.push_back(events.span(row));
    if (events.kind[row] != SpanKind::annotation) continue;
    if (trace.names[events.name[row]].starts_with("ProfilerStep#")) profiler_steps.push_back(events.span(row));
    if (roles[row] != Role::optimizer_step) continue;
    const bool nested = events.thread[row] == thread && events.begin_ns[row] < step_end;
    step_end = nested ? std::max(step_end, events.end_ns[row]) : events.end_ns[row];
    thread = events.thread[row];
    if (!nested) step_ends_.push_back(events.end_ns[row]);
  }
  if (spans_.empty()) spans_ = std::move(profiler_steps);
  std::ranges::stable_sort(spans_, {}, &Interval::begin);
  std::ranges::sort(step_ends_);
}

std::int32_t Iterations::at(Nanoseconds time) const {
  if (!spans_.empty()) {
    auto after = std::ranges::upper_bound(spans_, time, {}, &Interval::begin);
    while (after != spans_.begin()) {
      --after;
      if (after->contains(time)) return static_cast<std::int32_t>(after - spans_.begin());
    }
    return -1;
  }
  if (step_ends_.empty()) return -1;
  return static_cast<std::int32_t>(std::ranges::upper_bound(step_ends_, time) - step_ends_.begin());
}

}  // namespace xmem::attribution
