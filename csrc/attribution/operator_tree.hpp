// The operator that encloses each operator: the call tree of a thread as a column of parents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trace/event_table.hpp"

namespace xmem::attribution {

// Row of the innermost operator that is open when the operator of each row begins; -1 for outermost ones and for rows
// that are not operators.
std::vector<std::int32_t> operator_parents(const trace::EventTable& events);

// The nearest wanted row for each of some rows: itself, or else the innermost wanted one of those that enclose it; -1
// for none, and for a row of -1. In steps no more than twice as many as there are operators, however deep they lie.
std::vector<std::int32_t> nearest_wanted(std::span<const std::int32_t> parents, std::span<const bool> wanted,
                                         std::span<const std::int32_t> rows);

// The spans of one kind, grouped by name.
struct RowsByName {
  std::vector<std::int32_t> rows;    // ascending within a name, names in the order of their ids
  std::vector<std::int32_t> counts;  // rows of each name
};

RowsByName rows_by_name(const trace::EventTable& events, trace::SpanKind kind, std::size_t names);

}  // namespace xmem::attribution
