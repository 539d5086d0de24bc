#include <string>

#include "testing.hpp"
#include "trace/parsing/event_extent.hpp"

using xmem::trace::event_extent;
using xmem::trace::EventEnd;

namespace {

void check(const std::string& text, EventEnd end, std::size_t length) {
  const auto extent = event_extent(text);
  CHECK(extent.end == end);
  CHECK_EQUAL(extent.length, length);
}

}  // namespace

TEST(an_undamaged_event_ends_at_its_own_brace) {
  const std::string event = R"({"a": "} ] },{ \" \\", "b": [{"c": 1}, {"d": [2]}]})";
  check(event + R"(, {"e": 3}])", EventEnd::closed, event.size());
}

TEST(objects_in_an_array_inside_an_event_are_no_events) {
  const std::string event = R"({"a": [{"b": 1},{"c": 2}]})";
  check(event, EventEnd::closed, event.size());
}

TEST(an_event_that_hides_its_end_goes_on_to_the_next_one) {
  for (const std::string damaged : {R"({"a": "b, "c": {"d": 1}},)", R"({"a": "b", "c": {"d": 1}, )",
                                    R"({"a": {"b", "c": {"d": 1}},)", R"({"a": "b", "c": ["d"}},)"}) {
    const auto extent = event_extent(damaged + "\n  {\"e\": 2}]");
    CHECK(extent.end != EventEnd::open);
    CHECK(extent.length <= damaged.size() + 3);
  }
  const std::string lost_quote = R"({"a": "b, "c": {"d": 1}}, )";
  check(lost_quote + R"({"e": 2})", EventEnd::damaged, lost_quote.size());
}

TEST(what_may_still_end_is_open) {
  const std::string cut = R"({"a": "b", "c": [1, 2)";
  check(cut, EventEnd::open, cut.size());
  check(R"({"a": "b}, {)", EventEnd::open, 12);
}
