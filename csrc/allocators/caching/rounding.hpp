// Size classes of PyTorch's CUDA caching allocator: request -> rounded size -> pool and segment size.
//
// Mirrors c10/cuda/CUDACachingAllocator.cpp (round_size, get_allocation_size, roundup_power2_next_division,
// should_split); the same in every version from 2.5 to 2.14, except that the size of a large segment became an option.
#pragma once

#include <algorithm>
#include <bit>

#include "allocators/ids.hpp"
#include "allocators/options.hpp"
#include "base/units.hpp"

namespace xmem::allocators {

inline constexpr Bytes kMinBlockSize = 512;               // unit of rounding and smallest block
inline constexpr Bytes kSmallSize = Bytes{1} << 20;       // largest rounded size of the small pool, inclusive
inline constexpr Bytes kSmallBuffer = Bytes{2} << 20;     // segment of the small pool
inline constexpr Bytes kMinLargeAlloc = Bytes{10} << 20;  // from here, inclusive, a segment is sized to its request
inline constexpr Bytes kRoundLarge = Bytes{2} << 20;      // unit of such segments

constexpr Bytes round_up(Bytes size, Bytes unit) {
  return (size + unit - 1) / unit * unit;
}

constexpr std::int32_t roundup_divisions_for(Bytes request, const AllocatorOptions& options) {
  const int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(request))) - 1;
  return options.roundup_divisions[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
}

// Up to the next of `divisions` equal steps between two powers of two.
constexpr Bytes round_to_division(Bytes request, std::int32_t divisions) {
  const auto floor = static_cast<Bytes>(std::bit_floor(static_cast<std::uint64_t>(request)));
  return round_up(request, floor / divisions);
}

// A request of 0 bytes never reaches the allocator.
constexpr Bytes round_size(Bytes request, const AllocatorOptions& options) {
  if (request < kMinBlockSize) return kMinBlockSize;
  const std::int32_t divisions = roundup_divisions_for(request, options);
  if (divisions > 1 && request > kMinBlockSize * divisions) return round_to_division(request, divisions);
  return (request + kMinBlockSize - 1) & ~(kMinBlockSize - 1);
}

constexpr Pool pool_of(Bytes rounded) {
  return rounded <= kSmallSize ? Pool::kSmall : Pool::kLarge;
}

constexpr Bytes segment_size(Bytes rounded, const AllocatorOptions& options) {
  if (rounded <= kSmallSize) return kSmallBuffer;
  if (rounded < kMinLargeAlloc) return options.large_segment;
  return round_up(rounded, kRoundLarge);
}

// Physical unit of an expandable segment.
constexpr Bytes expandable_page(Pool pool, const AllocatorOptions& options) {
  return pool == Pool::kSmall ? kSmallBuffer : options.large_segment;
}

// Whether the rest of a block of which `size` is taken becomes a block of its own. The rest of a large block stays
// inside as slack up to and including 1 MiB, unless the sizes that are replayed have their slack in them.
constexpr bool should_split(Bytes block_size, Bytes size, Pool pool, const AllocatorOptions& options) {
  const Bytes rest = block_size - size;
  if (pool == Pool::kSmall || options.expandable || options.sizes_with_slack) return rest >= kMinBlockSize;
  return size < options.max_split && rest > kSmallSize;
}

}  // namespace xmem::allocators
