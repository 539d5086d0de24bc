// A half-open interval [begin, end) of nanoseconds. Every span of the product is one of these.
#pragma once

#include "base/units.hpp"

namespace xmem {

struct Interval {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;

  constexpr Nanoseconds length() const { return end - begin; }
  constexpr bool is_empty() const { return end <= begin; }
  constexpr bool contains(Nanoseconds t) const { return begin <= t && t < end; }
  constexpr bool encloses(Interval other) const { return begin <= other.begin && other.end <= end; }
  constexpr bool overlaps(Interval other) const { return begin < other.end && other.begin < end; }
  friend constexpr bool operator==(Interval, Interval) = default;
};

}  // namespace xmem
