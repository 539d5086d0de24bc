// Units: sizes are int64 bytes, times int64 nanoseconds, everywhere in the core and in its columns.
#pragma once

#include <cstdint>
#include <limits>

namespace xmem {

using Bytes = std::int64_t;
using Nanoseconds = std::int64_t;

inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

// More than any device holds, and little enough that sums do not overflow.
inline constexpr Bytes kMaxBlockBytes = Bytes{1} << 44;

// Above any address of a device, and far from overflowing when sizes are added.
inline constexpr Bytes kMaxAddress = Bytes{1} << 61;

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) {
  return static_cast<Bytes>(n);
}
constexpr Bytes operator""_KiB(unsigned long long n) {
  return static_cast<Bytes>(n) << 10;
}
constexpr Bytes operator""_MiB(unsigned long long n) {
  return static_cast<Bytes>(n) << 20;
}
constexpr Bytes operator""_GiB(unsigned long long n) {
  return static_cast<Bytes>(n) << 30;
}
}  // namespace literals

}  // namespace xmem
