// Lifetimes of blocks -> the ordered requests that an allocator sees.
//
// Order: by time; at equal times frees, then emptied caches, then allocations; among equals the lower block. A block
// that is freed at the instant of its allocation is allocated and freed back to back, in the place of its allocation.
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
  // What follows is not in lifetimes; recordings and programs may have it.
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
};

struct Lifetimes {
  std::span<const Nanoseconds> alloc_ns;
  std::span<const Nanoseconds> free_ns;  // kNever: never
  std::span<const Bytes> size_bytes;
};

struct RequestSequence {
  std::vector<RequestKind> kind;
  std::vector<std::int32_t> block;  // index into the lifetimes, -1 for an emptied cache
  std::vector<Nanoseconds> time_ns;

  std::size_t count() const { return kind.size(); }
};

// `empty_cache_ns`: instants at which the program gives its cached memory back, in any order.
// Throws ConfigError naming the block when a column is shorter than another, a size is negative or above
// kMaxBlockBytes, or a block is freed before it is allocated.
RequestSequence make_request_sequence(const Lifetimes& lifetimes, std::span<const Nanoseconds> empty_cache_ns = {});

}  // namespace xmem::sequence
