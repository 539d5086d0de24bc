#include "attribution/forward_links.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace xmem::attribution {

ForwardLinks::ForwardLinks(const trace::EventTable& events, const SpanRoles& roles)
    : events_(events), backward_(events.size(), false) {
  std::int32_t thread = -1;
  Nanoseconds backward_until = std::numeric_limits<Nanoseconds>::min();  // end of the backward spans begun so far
  for (std::size_t row = 0; row < events.size(); ++row) {
    if (events.thread[row] != thread) {
      thread = events.thread[row];
      backward_until = std::numeric_limits<Nanoseconds>::min();
    }
    if (events.kind[row] != trace::SpanKind::operation) continue;
    backward_[row] = roles[row] == Role::evaluate_function || events.begin_ns[row] < backward_until ||
                     roles.is_engine_thread(thread);
    if (roles[row] == Role::evaluate_function) backward_until = std::max(backward_until, events.end_ns[row]);
    if (backward_[row] || events.sequence_number[row] < 0) continue;
    forward_.push_back({events.sequence_number[row], events.begin_ns[row], static_cast<std::int32_t>(row)});
  }
  std::ranges::sort(forward_, {},
                    [](const Forward& op) { return std::tuple(op.sequence_number, op.begin_ns, op.row); });
}

std::int32_t ForwardLinks::of(std::size_t row) const {
  const std::int64_t sequence_number = events_.sequence_number[row];
  if (sequence_number < 0 || !backward_[row]) return -1;
  // The first that does not qualify: same number, beginning with or after the backward operator.
  const auto after =
      std::ranges::lower_bound(forward_, std::tuple(sequence_number, events_.begin_ns[row]), {},
                               [](const Forward& op) { return std::tuple(op.sequence_number, op.begin_ns); });
  if (after == forward_.begin()) return -1;
  const Forward& found = *(after - 1);
  return found.sequence_number == sequence_number ? found.row : -1;
}

}  // namespace xmem::attribution
