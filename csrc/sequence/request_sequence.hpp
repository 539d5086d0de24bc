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
  kRecordStream = 3,  // the block is used on another stream; lifetimes do not say it, recordings may
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
