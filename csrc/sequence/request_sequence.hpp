// Lifetimes of blocks -> the ordered requests that an allocator sees.
//
// Order: by time; at equal times frees, then calls about no block, then allocations; among equals the lower block, or
// the call that was given first. A block that is freed at the instant of its allocation is allocated and freed back to
// back, in the place of its allocation. A block whose free waits for other streams is used on another one before it.
// Blocks of 0 bytes never reach an allocator and make no request. A block that lives forever is never freed.
//
// Cost: O(n), a radix sort of each of the two time columns and a merge; columns that are sorted already are not sorted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace xmem::sequence {

enum class RequestKind : std::uint8_t {
  kAlloc = 0,
  kFree = 1,
  kEmptyCache = 2,
  kRecordStream = 3,  // the block is used on another stream
  // Calls about a private pool (CUDA graphs, torch.cuda.MemPool), whose number stands in place of the block.
  kBeginPool = 4,         // requests go to the pool from here on; one more user of it
  kBeginCapture = 5,      // the same, for the capture of a graph
  kEndPool = 6,           // they no longer do
  kReleasePool = 7,       // one user less; without users its memory may be given back
  kRetainPool = 8,        // one more user
  kEmptyPool = 9,         // its memory is given back, if it has no users
  kUsePoolOnOom = 10,     // what lies free in it serves where the device has no memory
  kForbidPoolSplit = 11,  // its blocks are not cut
  kCheckpointPool = 12,   // how its segments are cut is kept, as the next checkpoint, from 0
  // The number of a checkpoint stands in place of the block.
  kRestoreSegment = 13,  // a segment of its pool is cut as it was; the blocks were asked for before
  kRestorePool = 14,     // all others are, too
};
inline constexpr std::uint8_t kLastRequestKind = 14;

struct Lifetimes {
  std::span<const Nanoseconds> alloc_ns;
  std::span<const Nanoseconds> free_ns;  // kNever: never
  std::span<const Bytes> size_bytes;
  std::span<const std::uint8_t> waits;  // whether the free waits for other streams; empty: none does
};

// What a program tells the allocator beside its requests for memory, in any order.
struct Calls {
  std::span<const Nanoseconds> time_ns;
  std::span<const std::uint8_t> kind;    // RequestKind, none about a block
  std::span<const std::int32_t> number;  // of the private pool or the checkpoint, -1 for an emptied cache
};

struct RequestSequence {
  std::vector<RequestKind> kind;
  std::vector<std::int32_t> block;  // index into the lifetimes, or the number of a call
  std::vector<Nanoseconds> time_ns;

  std::size_t count() const { return kind.size(); }
};

// Throws ConfigError naming the block when a column is shorter than another, a size is negative or above
// kMaxBlockBytes, a block is freed before it is allocated, or a call is one about a block.
RequestSequence make_request_sequence(const Lifetimes& lifetimes, const Calls& calls = {});

}  // namespace xmem::sequence
