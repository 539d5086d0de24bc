// Numbers of a trace, exactly. Times are microseconds with three decimals; a double loses the nanoseconds at 4e12.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace xmem::trace {

// A JSON number times 10^shift, cut towards zero to an integer; nothing when the text is not a number or does not fit.
std::optional<std::int64_t> parse_decimal(std::string_view text, int shift);

inline std::optional<std::int64_t> parse_microseconds_as_ns(std::string_view text) {
  return parse_decimal(text, 3);
}

// A JSON integer that fits.
std::optional<std::int64_t> parse_integer(std::string_view text);

// The same for an address: those from 2^63 on wrap to negative ones.
std::optional<std::int64_t> parse_address(std::string_view text);

}  // namespace xmem::trace
