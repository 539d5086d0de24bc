#include "allocators/free_blocks.hpp"

#include <algorithm>

namespace xmem::allocators {
namespace {

// Index of the first of `count` ascending keys that is not below `key`.
std::uint32_t first_not_below(const FreeKey* keys, std::uint32_t count, FreeKey key) {
  const FreeKey* base = keys;
  while (count > 1) {
    const std::uint32_t half = count / 2;
    base += (base[half - 1] < key) ? half : 0;  // a conditional move: the outcome is not predictable
    count -= half;
  }
  return static_cast<std::uint32_t>(base - keys) + static_cast<std::uint32_t>(count == 1 && *base < key);
}

}  // namespace

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
  const Chunk& home = chunk(index);
  return {index, first_not_below(home.key.data(), home.count, key)};
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
  const std::uint32_t slot = first_not_below(home.key.data(), home.count, key);
  std::copy_backward(home.key.begin() + slot, home.key.begin() + home.count, home.key.begin() + home.count + 1);
  std::copy_backward(home.block.begin() + slot, home.block.begin() + home.count, home.block.begin() + home.count + 1);
  home.key[slot] = key;
  home.block[slot] = block;
  ++home.count;
  last_[index] = home.key[home.count - 1];
}

void FreeBlocks::erase(Position at) {
  Chunk& home = chunk(at.chunk);
  std::copy(home.key.begin() + at.slot + 1, home.key.begin() + home.count, home.key.begin() + at.slot);
  std::copy(home.block.begin() + at.slot + 1, home.block.begin() + home.count, home.block.begin() + at.slot);
  --home.count;
  if (home.count > 0) {
    last_[at.chunk] = home.key[home.count - 1];
    return;
  }
  unused_.push_back(order_[at.chunk]);
  order_.erase(order_.begin() + at.chunk);
  last_.erase(last_.begin() + at.chunk);
}

std::uint32_t FreeBlocks::chunk_of(FreeKey key) const {
  return first_not_below(last_.data(), static_cast<std::uint32_t>(last_.size()), key);
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
  std::copy(low.key.begin() + kHalf, low.key.end(), high.key.begin());
  std::copy(low.block.begin() + kHalf, low.block.end(), high.block.begin());
  low.count = kHalf;
  high.count = kChunkKeys - kHalf;
  order_.insert(order_.begin() + index + 1, upper);
  last_.insert(last_.begin() + index, low.key[kHalf - 1]);
}

}  // namespace xmem::allocators
