// The operator that encloses each operator: the call tree of a thread as a column of parents.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/event_table.hpp"

namespace xmem::attribution {

// Row of the innermost operator that is open when the operator of each row begins; -1 for outermost ones and for rows
// that are not operators.
std::vector<std::int32_t> operator_parents(const trace::EventTable& events);

}  // namespace xmem::attribution
