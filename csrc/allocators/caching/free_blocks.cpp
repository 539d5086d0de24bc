#include "allocators/caching/free_blocks.hpp"

#include <algorithm>

namespace xmem::allocators {
namespace {

template <class Column>
void open_gap(Column& column, std::uint32_t slot, std::uint32_t count) {
  std::copy_backward(column.begin() + slot, column.begin() + count, column.begin() + count + 1);
}

template <class Column>
void close_gap(Column& column, std::uint32_t slot, std::uint32_t count) {
  std::copy(column.begin() + slot + 1, column.begin() + count, column.begin() + slot);
}

}  // namespace

// By size without branches (a multiplication, since compilers turn a choice into a jump whose outcome is not
// predictable); then past lower ranks of that size.
std::uint32_t FreeBlocks::Chunk::lower_bound(FreeKey key) const {
  const Bytes* base = size.data();
  for (std::uint32_t length = count; length > 1;) {
    const std::uint32_t half = length / 2;
    base += half * static_cast<std::uint32_t>(base[half - 1] < key.size);
    length -= half;
  }
  auto slot = static_cast<std::uint32_t>(base - size.data()) + static_cast<std::uint32_t>(*base < key.size);
  while (slot < count && size[slot] == key.size && rank[slot] < key.rank) ++slot;
  return slot;
}

FreeBlocks::Position FreeBlocks::next(Position at) const {
  if (at.slot + 1 < chunk(at.chunk).count) return {at.chunk, at.slot + 1};
  return {at.chunk + 1, 0};
}

FreeBlocks::Position FreeBlocks::previous(Position at) const {
  if (at.slot > 0) return {at.chunk, at.slot - 1};
  return {at.chunk - 1, chunk(at.chunk - 1).count - 1};
}

FreeBlocks::Position FreeBlocks::lower_bound(FreeKey key) const {
  const std::uint32_t index = chunk_of(key);
  if (index == order_.size()) return end();
  return {index, chunk(index).lower_bound(key)};
}

void FreeBlocks::insert(FreeKey key, BlockHandle block) {
  if (order_.empty()) {
    order_.push_back(new_chunk());
    last_.emplace_back();
  }
  std::uint32_t index = std::min(chunk_of(key), static_cast<std::uint32_t>(order_.size() - 1));
  if (chunk(index).count == kChunkKeys) {
    split_chunk(index);
    if (last_[index] < key) ++index;
  }
  Chunk& home = chunk(index);
  const std::uint32_t slot = home.count == 0 ? 0 : home.lower_bound(key);
  open_gap(home.size, slot, home.count);
  open_gap(home.rank, slot, home.count);
  open_gap(home.block, slot, home.count);
  home.size[slot] = key.size;
  home.rank[slot] = key.rank;
  home.block[slot] = block;
  ++home.count;
  last_[index] = home.last();
}

void FreeBlocks::erase(Position at) {
  Chunk& home = chunk(at.chunk);
  close_gap(home.size, at.slot, home.count);
  close_gap(home.rank, at.slot, home.count);
  close_gap(home.block, at.slot, home.count);
  --home.count;
  if (home.count > 0) {
    last_[at.chunk] = home.last();
    return;
  }
  unused_.push_back(order_[at.chunk]);
  order_.erase(order_.begin() + at.chunk);
  last_.erase(last_.begin() + at.chunk);
}

std::uint32_t FreeBlocks::chunk_of(FreeKey key) const {
  return static_cast<std::uint32_t>(std::ranges::lower_bound(last_, key) - last_.begin());
}

std::uint32_t FreeBlocks::new_chunk() {
  if (!unused_.empty()) {
    const std::uint32_t index = unused_.back();
    unused_.pop_back();
    return index;
  }
  chunks_.emplace_back();
  return static_cast<std::uint32_t>(chunks_.size() - 1);
}

void FreeBlocks::split_chunk(std::uint32_t index) {
  constexpr std::uint32_t kHalf = kChunkKeys / 2;
  const std::uint32_t upper = new_chunk();
  Chunk& low = chunk(index);
  Chunk& high = chunks_[upper];
  std::copy(low.size.begin() + kHalf, low.size.end(), high.size.begin());
  std::copy(low.rank.begin() + kHalf, low.rank.end(), high.rank.begin());
  std::copy(low.block.begin() + kHalf, low.block.end(), high.block.begin());
  low.count = kHalf;
  high.count = kChunkKeys - kHalf;
  order_.insert(order_.begin() + index + 1, upper);
  last_.insert(last_.begin() + index, low.last());
}

}  // namespace xmem::allocators
