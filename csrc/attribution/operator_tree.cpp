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

namespace {

// One pass over all operators: parents come before their children.
std::vector<std::int32_t> nearest_wanted_of_all(std::span<const std::int32_t> parents, std::span<const bool> wanted) {
  std::vector<std::int32_t> nearest(parents.size(), -1);
  for (std::size_t row = 0; row < parents.size(); ++row) {
    if (wanted[row]) {
      nearest[row] = static_cast<std::int32_t>(row);
    } else if (parents[row] >= 0) {
      nearest[row] = nearest[static_cast<std::size_t>(parents[row])];
    }
  }
  return nearest;
}

}  // namespace

std::vector<std::int32_t> nearest_wanted(std::span<const std::int32_t> parents, std::span<const bool> wanted,
                                         std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> found(rows.size(), -1);
  if (std::ranges::find(wanted, true) == wanted.end()) return found;
  std::size_t steps = parents.size();  // climbing from each row costs more than one pass where many lie deep
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::int32_t row = rows[i];
    for (; row >= 0 && !wanted[static_cast<std::size_t>(row)]; row = parents[static_cast<std::size_t>(row)]) {
      if (steps-- == 0) {
        const std::vector<std::int32_t> nearest = nearest_wanted_of_all(parents, wanted);
        for (; i < rows.size(); ++i) found[i] = rows[i] < 0 ? -1 : nearest[static_cast<std::size_t>(rows[i])];
        return found;
      }
    }
    found[i] = row;
  }
  return found;
}

RowsByName rows_by_name(const trace::EventTable& events, trace::SpanKind kind, std::size_t names) {
  RowsByName found;
  found.counts.assign(names, 0);
  for (std::size_t row = 0; row < events.size(); ++row) {
    if (events.kind[row] == kind) ++found.counts[static_cast<std::size_t>(events.name[row].value)];
  }
  std::vector<std::size_t> next(names, 0);  // where the next row of each name goes
  std::size_t total = 0;
  for (std::size_t name = 0; name < names; ++name) {
    next[name] = total;
    total += static_cast<std::size_t>(found.counts[name]);
  }
  found.rows.resize(total);
  for (std::size_t row = 0; row < events.size(); ++row) {
    if (events.kind[row] != kind) continue;
    found.rows[next[static_cast<std::size_t>(events.name[row].value)]++] = static_cast<std::int32_t>(row);
  }
  return found;
}

}  // namespace xmem::attribution
