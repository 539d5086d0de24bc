// A half-open interval [begin, end) of nanoseconds. Every span of the product is one of these.
#pragma once

#include "base/units.hpp"

namespace xmem {

struct Interval {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;

  constexpr bool contains(Nanoseconds t) const { return begin <= t && t < end; }
  friend constexpr bool operator==(Interval, Interval) = default;
};

}  // namespace xmem
