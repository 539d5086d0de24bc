// Handles of the allocator level, and the pools of PyTorch's allocator.
#pragma once

#include <cstdint>

#include "base/ids.hpp"

namespace xmem::allocators {

// A block inside an allocator. Valid from allocate() until its free completes; then the number is used again.
using BlockHandle = Id<struct AllocatorBlockTag>;

// A segment (or expandable range) in order of creation; never used again, so it doubles as the age of the segment.
using SegmentId = Id<struct SegmentTag>;

// What CUDA calls cudaStream_t, as an integer. Free sets are ordered by this value.
using StreamHandle = std::int64_t;

enum class Pool : std::uint8_t { kSmall = 0, kLarge = 1 };

// PyTorch's MempoolId_t as one number: a private pool, which belongs to CUDA graphs or to a torch.cuda.MemPool and has
// a small and a large pool of its own, or the default pool that everything else shares.
using MempoolId = std::int32_t;
inline constexpr MempoolId kDefaultMempool = 0;

// A stream within a mempool: memory is never shared between two of them. Index into the arenas of the heap.
using ArenaIndex = std::int32_t;

}  // namespace xmem::allocators
