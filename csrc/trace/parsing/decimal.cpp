#include "trace/parsing/decimal.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

namespace xmem::trace {
namespace {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// value * 10 + digit, or false when it does not fit.
bool push_digit(std::int64_t& value, int digit) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (value > (kMax - digit) / 10) return false;
  value = value * 10 + digit;
  return true;
}

// A number without a sign or an exponent, of so few digits that nothing overflows, as times are: one pass.
std::optional<std::int64_t> parse_plain(std::string_view text, int shift) {
  constexpr std::size_t kMostDigits = std::numeric_limits<std::int64_t>::digits10;
  if (text.size() > kMostDigits || shift < 0) return std::nullopt;
  std::int64_t value = 0;
  int whole = 0;
  int fraction = -1;  // digits behind the point, -1 before it
  for (const char c : text) {
    if (c == '.' && fraction < 0) {
      fraction = 0;
      continue;
    }
    if (!is_digit(c)) return std::nullopt;
    if (fraction < 0) {
      ++whole;
    } else if (fraction++ >= shift) {
      continue;
    }
    value = value * 10 + (c - '0');
  }
  if (whole == 0 || fraction == 0 || whole + shift > static_cast<int>(kMostDigits)) return std::nullopt;
  for (int known = std::max(fraction, 0); known < shift; ++known) value *= 10;
  return value;
}

template <class Integer>
std::optional<Integer> parse_as(std::string_view text) {
  Integer value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::int64_t> parse_decimal(std::string_view text, int shift) {
  if (const auto plain = parse_plain(text, shift)) return plain;
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty() || !is_digit(text.front())) return std::nullopt;

  const auto exponent_at = text.find_first_of("eE");
  if (exponent_at != std::string_view::npos) {
    std::string_view exponent = text.substr(exponent_at + 1);
    if (exponent.starts_with('+')) exponent.remove_prefix(1);
    int power = 0;
    const auto [end, error] = std::from_chars(exponent.data(), exponent.data() + exponent.size(), power);
    if (error != std::errc{} || end != exponent.data() + exponent.size() || power > 40 || power < -40)
      return std::nullopt;
    shift += power;
    text = text.substr(0, exponent_at);
  }

  const auto point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view fraction = point == std::string_view::npos ? std::string_view{} : text.substr(point + 1);
  if (point != std::string_view::npos && fraction.empty()) return std::nullopt;

  // The digits of the result are those of "whole fraction 000..." up to position whole.size() + shift.
  const std::int64_t wanted = static_cast<std::int64_t>(whole.size()) + shift;
  std::int64_t value = 0;
  const std::int64_t given = static_cast<std::int64_t>(whole.size() + fraction.size());
  for (std::int64_t i = 0; i < given || i < wanted; ++i) {
    char digit = '0';
    if (i < given) {
      const auto at = static_cast<std::size_t>(i);
      digit = at < whole.size() ? whole[at] : fraction[at - whole.size()];
    }
    if (!is_digit(digit)) return std::nullopt;
    if (i < wanted && !push_digit(value, digit - '0')) return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  return parse_as<std::int64_t>(text);
}

std::optional<std::int64_t> parse_address(std::string_view text) {
  if (const auto address = parse_as<std::uint64_t>(text)) return static_cast<std::int64_t>(*address);
  return parse_integer(text);
}

}  // namespace xmem::trace
