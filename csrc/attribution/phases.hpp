// Which iteration an instant belongs to, and which part of the training step spans are in.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/interval.hpp"
#include "trace/trace.hpp"

namespace xmem::attribution {

enum class Phase : std::uint8_t { other = 0, load = 1, forward = 2, backward = 3, optimizer_step = 4, zero_grad = 5 };

// What a span's name says about the phase; looked up once per distinct name.
enum class Role : std::uint8_t { none, optimizer_step, zero_grad, load, evaluate_function };

class SpanRoles {
 public:
  explicit SpanRoles(const trace::Trace& trace);
  Role operator[](std::size_t row) const;
  bool is_engine(std::size_t row) const;  // an operator of the autograd engine itself
  // Whether a thread is the engine's own, in a trace without spans of the engine: its first operator is a node. What
  // the engine does between nodes, such as to let go of saved tensors, is in no span there.
  bool is_engine_thread(std::int32_t thread) const { return engine_threads_.contains(thread); }

 private:
  const trace::EventTable& events_;
  std::vector<Role> operator_role_, annotation_role_;  // by name
  std::vector<bool> engine_;                           // by name
  std::set<std::int32_t> engine_threads_;
};

// What the open spans of a thread say about the phase.
class OpenPhases {
 public:
  void enter(Role role, trace::SpanKind kind);
  Phase phase(bool on_engine_thread) const;

 private:
  bool step_ = false, zero_grad_ = false, load_ = false, backward_ = false, forward_ = false;
};

// Iterations of the training loop: from the capture's own marks, else ProfilerStep#, else the ends of outermost
// optimizer steps.
class Iterations {
 public:
  Iterations(const trace::Trace& trace, const SpanRoles& roles);
  std::int32_t at(Nanoseconds time) const;  // -1 outside of all of them

  std::int32_t optimizer_steps() const { return static_cast<std::int32_t>(step_ends_.size()); }

 private:
  std::vector<Interval> spans_;         // by begin
  std::vector<Nanoseconds> step_ends_;  // of outermost optimizer steps, ascending
};

}  // namespace xmem::attribution
