// Segments and blocks of an allocator at one instant, as columns: what a memory snapshot calls `segments`.
#pragma once

#include <cstdint>
#include <vector>

#include "allocators/caching/segment.hpp"

namespace xmem::allocators {

struct AllocatorState {
  // Segments in ascending address. An expandable range is one segment per mapped stretch.
  std::vector<Bytes> segment_address;
  std::vector<Bytes> segment_size;
  std::vector<StreamHandle> segment_stream;
  std::vector<std::uint8_t> segment_pool;        // Pool
  std::vector<std::uint8_t> segment_expandable;  // 0 or 1
  std::vector<MempoolId> segment_mempool;
  std::vector<std::int32_t> segment_id;  // SegmentId: order of creation

  // Blocks in ascending address; those of one segment tile it.
  std::vector<std::int32_t> block_segment;  // index into the segment columns
  std::vector<Bytes> block_address;
  std::vector<Bytes> block_size;
  std::vector<Bytes> block_requested;      // 0 when free
  std::vector<std::uint8_t> block_state;   // BlockState: free, allocated or pending free
  std::vector<std::int32_t> block_handle;  // BlockHandle
};

// Throws TraceError for columns that no allocator could have: see the rules above, with sizes in units of 512 bytes and
// addresses of which sums can be made. For states that come from a file.
void check_state(const AllocatorState& state);

}  // namespace xmem::allocators
