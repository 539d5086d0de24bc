#include <string>

#include "testing.hpp"
#include "trace/parsing/decimal.hpp"

using xmem::trace::parse_address;
using xmem::trace::parse_decimal;
using xmem::trace::parse_integer;
using xmem::trace::parse_microseconds_as_ns;

TEST(microseconds_keep_their_nanoseconds_at_four_trillion) {
  CHECK_EQUAL(parse_microseconds_as_ns("4373598193210.044").value_or(0), 4373598193210044);
  CHECK_EQUAL(parse_microseconds_as_ns("0.001").value_or(0), 1);
  CHECK_EQUAL(parse_microseconds_as_ns("7").value_or(0), 7000);
  CHECK_EQUAL(parse_microseconds_as_ns("-1.5").value_or(0), -1500);
}

TEST(digits_beyond_a_nanosecond_are_cut_off) {
  CHECK_EQUAL(parse_microseconds_as_ns("1.2349999").value_or(0), 1234);
  CHECK_EQUAL(parse_microseconds_as_ns("-0.0009").value_or(1), 0);
}

// The same with a sign, which takes the way that reads every number.
TEST(plain_times_are_read_as_all_others) {
  for (const char* text :
       {"0", "7", "0.5", "12.3456789", "4374022186192.297", "999999999999999", "999999999999999.999",
        "1000000000000000", "123456789012345678", "000000000000001.5", "1..2", "1.2.3", ".5", "5."}) {
    const auto plain = parse_decimal(text, 3);
    const auto negative = parse_decimal("-" + std::string(text), 3);
    CHECK_EQUAL(plain.has_value(), negative.has_value());
    CHECK_EQUAL(plain.value_or(0), -negative.value_or(0));
  }
}

TEST(exponents_shift) {
  CHECK_EQUAL(parse_microseconds_as_ns("1.5e3").value_or(0), 1'500'000);
  CHECK_EQUAL(parse_microseconds_as_ns("25E-4").value_or(0), 2);
  CHECK(!parse_microseconds_as_ns("1e99").has_value());
}

TEST(what_is_no_number_or_does_not_fit_is_nothing) {
  for (const char* text : {"", "-", "abc", "\"1\"", "1.", "1.x", "12x", "NaN", "null", "9223372036854775.808"}) {
    CHECK(!parse_decimal(text, 3).has_value());
  }
  CHECK_EQUAL(parse_decimal("9223372036854775.807", 3).value_or(0), INT64_MAX);
}

TEST(integers_are_exact_and_addresses_beyond_int64_wrap) {
  CHECK_EQUAL(parse_integer("139637976731648").value_or(0), 139637976731648);
  CHECK_EQUAL(parse_address("18446744073709551615").value_or(0), -1);
  CHECK_EQUAL(parse_address("-1").value_or(0), -1);
  CHECK(!parse_integer("9223372036854775808").has_value());
  CHECK(!parse_integer("1.0").has_value());
  CHECK(!parse_integer("").has_value());
}
