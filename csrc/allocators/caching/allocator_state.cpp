// Segments and blocks out of a CachingAllocator, and back into a fresh one.
#include "allocators/caching/allocator_state.hpp"

#include <algorithm>
#include <string>

#include "allocators/caching/caching_allocator.hpp"
#include "allocators/caching/rounding.hpp"
#include "base/error.hpp"

namespace xmem::allocators {

void check_state(const AllocatorState& state) {
  const auto require = [](bool holds, const char* what) {
    if (holds) return;
    throw TraceError(std::string(what) + ", which PyTorch's never do; replay a snapshot of a real run");
  };
  const auto is_size = [](Bytes size) { return size > 0 && size <= kMaxBlockBytes && size % kMinBlockSize == 0; };
  std::size_t b = 0;
  Bytes last_end = 0;
  for (std::size_t s = 0; s < state.segment_address.size(); ++s) {
    Bytes at = state.segment_address[s];
    require(at >= last_end && at <= kMaxAddress, "segments overlap, or lie outside of the address space");
    require(at % kMinBlockSize == 0, "segments begin at addresses that are no multiples of 512");
    require(is_size(state.segment_size[s]), "sizes of segments are not in units of 512 bytes");
    require(state.segment_pool[s] <= 1, "segments are of an unknown pool");
    last_end = at + state.segment_size[s];
    for (; b < state.block_segment.size() && static_cast<std::size_t>(state.block_segment[b]) == s; ++b) {
      const auto block_state = static_cast<BlockState>(state.block_state[b]);
      const bool is_free = block_state == BlockState::kFree;
      require(is_free || block_state == BlockState::kAllocated || block_state == BlockState::kPendingFree,
              "blocks are in an unknown state");
      require(is_size(state.block_size[b]) && state.block_address[b] == at && state.block_size[b] <= last_end - at,
              "the blocks of this snapshot do not fill its segments in units of 512 bytes");
      require(is_free || (state.block_requested[b] >= 0 && state.block_requested[b] <= state.block_size[b]),
              "blocks are smaller than what was requested");
      at += state.block_size[b];
    }
    require(at == last_end, "the blocks of this snapshot do not fill its segments in units of 512 bytes");
  }
  require(b == state.block_segment.size(), "blocks are in no segment");
}

AllocatorState CachingAllocator::state() const {
  const SegmentTable& table = heap_.table;
  std::vector<std::int32_t> alive;
  for (std::size_t id = 0; id < table.segments().size(); ++id) {
    if (table.segments()[id].alive) alive.push_back(static_cast<std::int32_t>(id));
  }
  std::ranges::sort(alive, {}, [&](std::int32_t id) { return table[SegmentId{id}].address; });

  AllocatorState state;
  for (const std::int32_t id : alive) {
    const Segment& segment = table[SegmentId{id}];
    bool in_stretch = false;  // of mapped memory
    for (BlockHandle at = segment.first; !at.is_none(); at = table[at].next) {
      const Block& block = table[at];
      if (block.state == BlockState::kUnmapped) {
        in_stretch = false;
        continue;
      }
      if (!in_stretch) {
        state.segment_address.push_back(block.address);
        state.segment_size.push_back(0);
        state.segment_stream.push_back(segment.stream);
        state.segment_pool.push_back(static_cast<std::uint8_t>(segment.pool));
        state.segment_expandable.push_back(segment.expandable ? 1 : 0);
        state.segment_mempool.push_back(segment.mempool);
        state.segment_id.push_back(id);
        in_stretch = true;
      }
      state.segment_size.back() += block.size;
      state.block_segment.push_back(static_cast<std::int32_t>(state.segment_address.size() - 1));
      state.block_address.push_back(block.address);
      state.block_size.push_back(block.size);
      state.block_requested.push_back(block.state == BlockState::kFree ? 0 : block.requested);
      state.block_state.push_back(static_cast<std::uint8_t>(block.state));
      state.block_handle.push_back(at.value);
    }
  }
  return state;
}

std::vector<BlockHandle> CachingAllocator::restore(const AllocatorState& state) {
  std::vector<BlockHandle> handles(state.block_address.size());
  std::vector<BlockHandle> range_rests;  // the part of each expandable range that no stretch has taken yet
  std::size_t b = 0;
  for (std::size_t s = 0; s < state.segment_address.size(); ++s) {
    const bool expandable = state.segment_expandable[s] != 0;
    Segment segment;
    segment.address = state.segment_address[s];
    segment.size = state.segment_size[s];
    segment.stream = state.segment_stream[s];
    segment.pool = static_cast<Pool>(state.segment_pool[s]);
    segment.mempool = state.segment_mempool[s];
    segment.expandable = expandable;
    const ArenaIndex arena = heap_.arena_of(segment.stream, segment.mempool);
    heap_.add_reserved(arena, segment.pool, segment.size);
    mempools_.ensure(segment.mempool);

    BlockHandle rest;
    if (expandable) {
      rest = expandable_.restore_range(segment, arena, range_rests);
    } else {
      heap_.statistics.segment.increase(segment.pool, 1);
      if (segment.size >= options_.max_split) heap_.statistics.oversize_segments.increase(1);
      rest = heap_.table.add(segment, arena, BlockState::kFree);
    }
    for (; b < state.block_segment.size() && static_cast<std::size_t>(state.block_segment[b]) == s; ++b) {
      const bool is_last = !expandable && heap_.table[rest].size == state.block_size[b];
      const BlockHandle block = is_last ? rest : heap_.table.cut_front(rest, state.block_size[b]);
      heap_.table[block].state = static_cast<BlockState>(state.block_state[b]);
      restore_block(block, state.block_requested[b]);
      if (heap_.table[block].state != BlockState::kFree) handles[b] = block;
    }
  }
  for (const BlockHandle rest : range_rests) heap_.insert_unmapped(rest);
  return handles;
}

void CachingAllocator::restore_block(BlockHandle restored, Bytes requested) {
  Block& block = heap_.table[restored];
  Statistics& statistics = heap_.statistics;
  if (block.state == BlockState::kFree) {
    heap_.insert_free(restored);
    if (heap_.table[block.segment].expandable || !block.is_split()) return;
    statistics.inactive_split.increase(block.pool, 1);
    statistics.inactive_split_bytes.increase(block.pool, block.size);
    return;
  }
  block.requested = requested;
  statistics.active.increase(block.pool, 1);
  statistics.active_bytes.increase(block.pool, block.size);
  statistics.requested_bytes.increase(block.pool, requested);
  if (block.state == BlockState::kPendingFree) {
    pending_.push_back(restored);
    return;
  }
  statistics.allocation.increase(block.pool, 1);
  statistics.allocated_bytes.increase(block.pool, block.size);
  if (block.size >= options_.max_split) statistics.oversize_allocations.increase(1);
}

}  // namespace xmem::allocators
