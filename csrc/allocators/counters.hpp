// The counters as one row of numbers, and the keys of torch.cuda.memory_stats() that name its columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocators/statistics.hpp"

namespace xmem::allocators {

// Such as reserved_bytes.all.peak; the same in every call.
std::vector<std::string> counter_names();

// Appends the value of each counter, in the order of the names.
void append_counters(const Statistics& statistics, std::vector<std::int64_t>& row);

}  // namespace xmem::allocators
