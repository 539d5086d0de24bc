// How many blocks of a run were changed: the rows of two tables of lifetimes, matched by the block that they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.hpp"

namespace xmem::blocks {

// What is alive when. A block that a trace holds stands in at most one row.
struct Lifetimes {
  std::span<const std::int32_t> block;  // row of the BlockTable; negative for what no trace holds
  std::span<const Bytes> size_bytes;
  std::span<const Nanoseconds> alloc_ns;
  std::span<const Nanoseconds> free_ns;

  std::size_t size() const { return block.size(); }
};

// Counts blocks that are in one of the two alone, or in both with another size or lifetime. Rows that no trace holds
// are taken to be only ever added: as many as there are more of them afterwards.
std::int64_t blocks_changed(const Lifetimes& before, const Lifetimes& after);

}  // namespace xmem::blocks
