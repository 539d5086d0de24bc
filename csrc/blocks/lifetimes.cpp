#include "blocks/lifetimes.hpp"

#include <algorithm>
#include <vector>

namespace xmem::blocks {

std::int64_t blocks_changed(const Lifetimes& before, const Lifetimes& after) {
  std::int32_t last = -1;
  for (const std::int32_t block : before.block) last = std::max(last, block);
  std::vector<std::int32_t> row_of(static_cast<std::size_t>(last) + 1, -1);
  std::int64_t held_before = 0;
  for (std::size_t row = 0; row < before.size(); ++row) {
    if (before.block[row] < 0) continue;
    row_of[static_cast<std::size_t>(before.block[row])] = static_cast<std::int32_t>(row);
    ++held_before;
  }

  std::int64_t kept = 0, changed = 0, held_after = 0;
  for (std::size_t row = 0; row < after.size(); ++row) {
    const std::int32_t block = after.block[row];
    if (block < 0) continue;
    ++held_after;
    if (block > last || row_of[static_cast<std::size_t>(block)] < 0) continue;
    const auto old = static_cast<std::size_t>(row_of[static_cast<std::size_t>(block)]);
    ++kept;
    changed += before.size_bytes[old] != after.size_bytes[row] || before.alloc_ns[old] != after.alloc_ns[row] ||
               before.free_ns[old] != after.free_ns[row];
  }
  const std::int64_t made_before = static_cast<std::int64_t>(before.size()) - held_before;
  const std::int64_t made_after = static_cast<std::int64_t>(after.size()) - held_after;
  return changed + (held_before - kept) + (held_after - kept) + (made_after - made_before);
}

}  // namespace xmem::blocks
