#include "allocators/caching/expandable_segments.hpp"

#include <algorithm>

#include "allocators/caching/rounding.hpp"

namespace xmem::allocators {
namespace {
// The longest range whose places fit a rank (heap.cpp). No request and no device comes near it.
constexpr Bytes kMaxRangeBytes = Bytes{1} << 45;
}  // namespace

BlockHandle ExpandableSegments::allocate(ArenaIndex arena, Pool pool, Bytes size) {
  SegmentTable& table = heap_.table;
  BlockHandle candidate = find_space(arena, pool, size);
  if (candidate.is_none()) candidate = reserve_range(arena, pool);
  if (table[candidate].state == BlockState::kUnmapped && !map(candidate, std::min(table[candidate].size, size))) {
    return {};
  }
  while (table[candidate].size < size) {
    const BlockHandle behind = table[candidate].next;  // unmapped: a free one would have been joined
    if (!map(behind, std::min(size - table[candidate].size, table[behind].size))) return {};
    candidate = behind;  // it has joined the block before it
  }
  heap_.erase_free(candidate);
  return candidate;
}

FreeBlocks::Position ExpandableSegments::least_reach(const FreeBlocks& free, FreeBlocks::Position at) const {
  for (auto next = free.next(at); next != free.end() && reach(free[next]) < reach(free[at]); next = free.next(next)) {
    at = next;
  }
  return at;
}

void ExpandableSegments::unmap(BlockHandle block) {
  SegmentTable& table = heap_.table;
  const Segment range = table[table[block].segment];
  const Bytes page = expandable_page(range.pool, heap_.options());
  const Bytes offset = table[block].address - range.address;
  const Bytes first = round_up(offset, page);
  const Bytes last = (offset + table[block].size) / page * page;
  if (first >= last) return;

  heap_.erase_free(block);
  if (first > offset) heap_.insert_free(table.cut_front(block, first - offset));
  if (table[block].size > last - first) heap_.insert_free(table.cut_back(block, last - first));

  const Bytes address = table[block].address;
  heap_.device().unmap(address, last - first);
  heap_.remove_reserved(table[block].arena, range.pool, last - first);
  heap_.log(Action::kSegmentUnmap, table[block], last - first);

  table[block].state = BlockState::kUnmapped;
  heap_.join_neighbours(block);
  if (table[block].is_split()) {
    heap_.insert_unmapped(block);
    return;
  }
  heap_.device().unreserve(range.address, range.size);
  table.remove(table[block].segment);
}

BlockHandle ExpandableSegments::find_space(ArenaIndex arena, Pool pool, Bytes size) const {
  const SegmentTable& table = heap_.table;
  for (const BlockHandle unmapped : heap_.home(arena, pool).unmapped) {
    const BlockHandle before = table[unmapped].previous;
    const bool free_before = !before.is_none() && table[before].state == BlockState::kFree;
    const BlockHandle candidate = free_before ? before : unmapped;
    if (has_space(candidate, size)) return candidate;
  }
  return {};
}

BlockHandle ExpandableSegments::reserve_range(ArenaIndex arena, Pool pool) {
  Segment range;
  range.size = range_bytes(pool);
  range.address = heap_.device().reserve(range.size);
  range.stream = heap_.stream_handle(arena);
  range.mempool = heap_.mempool(arena);
  range.pool = pool;
  range.expandable = true;
  const BlockHandle block = heap_.table.add(range, arena, BlockState::kUnmapped);
  heap_.insert_unmapped(block);
  return block;
}

// PyTorch reserves an eighth more addresses than the device has memory, for pages that move to the end.
Bytes ExpandableSegments::range_bytes(Pool pool) const {
  const Bytes total = heap_.device().total_bytes();
  const Bytes page = expandable_page(pool, heap_.options());
  return std::min(round_up(total + total / 8, page), kMaxRangeBytes / page * page);
}

BlockHandle ExpandableSegments::restore_range(const Segment& stretch, ArenaIndex arena,
                                              std::vector<BlockHandle>& rests) {
  SegmentTable& table = heap_.table;
  const auto holds_stretch = [&](BlockHandle rest) {
    const Block& block = table[rest];
    return block.arena == arena && block.pool == stretch.pool && block.address <= stretch.address &&
           stretch.address + stretch.size < block.address + block.size;
  };
  const auto found = std::ranges::find_if(rests, holds_stretch);
  if (found == rests.end()) {
    Segment range = stretch;
    range.size = std::max(range_bytes(stretch.pool), stretch.size + expandable_page(stretch.pool, heap_.options()));
    rests.push_back(table.add(range, arena, BlockState::kUnmapped));
    return rests.back();
  }
  const Bytes gap = stretch.address - table[*found].address;
  if (gap > 0) heap_.insert_unmapped(table.cut_front(*found, gap));
  return *found;
}

bool ExpandableSegments::has_space(BlockHandle first, Bytes size) const {
  Bytes bytes = 0;
  for (BlockHandle b = first; bytes < size && !b.is_none(); b = heap_.table[b].next) {
    const BlockState state = heap_.table[b].state;
    if (state != BlockState::kFree && state != BlockState::kUnmapped) break;
    bytes += heap_.table[b].size;
  }
  return bytes >= size;
}

bool ExpandableSegments::map(BlockHandle block, Bytes size) {
  SegmentTable& table = heap_.table;
  const Pool pool = table[block].pool;
  const Bytes mapped = round_up(size, expandable_page(pool, heap_.options()));
  const Bytes address = table[block].address;
  if (!heap_.device().map(address, mapped)) return false;

  heap_.erase_unmapped(block);
  if (mapped < table[block].size) heap_.insert_unmapped(table.cut_back(block, mapped));
  table[block].state = BlockState::kFree;
  heap_.add_reserved(table[block].arena, pool, mapped);
  heap_.log(Action::kSegmentMap, table[block], mapped);
  heap_.join_neighbours(block);
  heap_.insert_free(block);
  return true;
}

Bytes ExpandableSegments::reach(BlockHandle block) const {
  const Block& from = heap_.table[block];
  const bool can_grow = !from.next.is_none() && heap_.table[from.next].state == BlockState::kUnmapped;
  return from.size + (can_grow ? heap_.table[from.next].size : 0);
}

}  // namespace xmem::allocators
