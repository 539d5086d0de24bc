// Segments and blocks out of a CachingAllocator, and back into a fresh one.
#include "allocators/allocator_state.hpp"

#include <algorithm>

#include "allocators/caching_allocator.hpp"

namespace xmem::allocators {

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

}  // namespace xmem::allocators
