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

TEST(touching_intervals_do_not_overlap) {
  CHECK(!(Interval{0, 10}.overlaps(Interval{10, 20})));
  CHECK((Interval{0, 11}.overlaps(Interval{10, 20})));
}

TEST(an_interval_encloses_itself_and_an_empty_one_contains_nothing) {
  CHECK((Interval{5, 9}.encloses(Interval{5, 9})));
  CHECK(!(Interval{5, 9}.encloses(Interval{5, 10})));
  CHECK((Interval{7, 7}.is_empty()));
  CHECK(!(Interval{7, 7}.contains(7)));
}
