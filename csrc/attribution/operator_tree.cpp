#include "attribution/operator_tree.hpp"

#include <algorithm>

namespace xmem::attribution {

std::vector<std::int32_t> operator_parents(const trace::EventTable& events) {
  std::vector<std::int32_t> parents(events.size(), -1);
  std::vector<std::int32_t> open;  // operators of the thread, outermost first; nearly always nested
  std::int32_t thread = -1;
  for (std::size_t row = 0; row < events.size(); ++row) {
    if (events.kind[row] != trace::SpanKind::operation) continue;
    if (events.thread[row] != thread) {
      thread = events.thread[row];
      open.clear();
    }
    while (!open.empty() && events.end_ns[static_cast<std::size_t>(open.back())] <= events.begin_ns[row])
      open.pop_back();
    if (!open.empty()) parents[row] = open.back();
    open.push_back(static_cast<std::int32_t>(row));
  }
  return parents;
}

}  // namespace xmem::attribution
