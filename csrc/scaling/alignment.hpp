// Which rows of two runs of one script stand for each other.
//
// Runs of different size issue the same operators in the same order but for a few: scratch that a library takes at some
// sizes only, a branch that depends on them. The rows are compared by a key and aligned by a longest common
// subsequence, with the greedy algorithm of E. W. Myers, "An O(ND) difference algorithm and its variations",
// Algorithmica 1 (1986): time grows with the number of differences, not with the product of the lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace xmem::scaling {

// More rows that stand for nothing in the other run than this, and the runs are not of one script: memory for the
// search grows with its square.
inline constexpr std::size_t kMaxDifferences = 4000;

// For each row of `left` the row of `right` with the same key that it is aligned with, -1 = none; ascending.
// Throws ConfigError when more than `max_differences` rows have no counterpart.
std::vector<std::int32_t> align(std::span<const std::int64_t> left, std::span<const std::int64_t> right,
                                std::size_t max_differences = kMaxDifferences);

}  // namespace xmem::scaling
