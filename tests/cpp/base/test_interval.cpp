#include "base/interval.hpp"
#include "testing.hpp"

using xmem::Interval;

TEST(an_interval_contains_its_begin_and_not_its_end) {
  const Interval span{10, 20};
  CHECK(span.contains(10));
  CHECK(span.contains(19));
  CHECK(!span.contains(20));
  CHECK(!span.contains(9));
}

TEST(an_empty_interval_contains_nothing) {
  CHECK(!(Interval{7, 7}.contains(7)));
}
