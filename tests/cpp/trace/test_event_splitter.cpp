#include <string>
#include <vector>

#include "testing.hpp"
#include "trace/parsing/event_splitter.hpp"

using xmem::trace::EventSplitter;

namespace {

struct Ends {
  std::vector<std::size_t> events;  // one past each event, found piece by piece
  std::size_t array = EventSplitter::kNone;
};

// Every end that a reader would see when the text arrives in pieces of this size.
Ends scan_in_pieces(const std::string& text, std::size_t piece) {
  EventSplitter splitter;
  Ends ends;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    const auto cut = splitter.scan(std::string_view(text).substr(at, piece));
    if (cut.last_event_end != EventSplitter::kNone) ends.events.push_back(at + cut.last_event_end);
    if (cut.array_end != EventSplitter::kNone) {
      ends.array = at + cut.array_end;
      break;
    }
  }
  return ends;
}

}  // namespace

TEST(an_event_ends_at_its_own_closing_brace) {
  const std::string text = R"({"a": {"b": 1}}, {"c": 2})";
  EventSplitter splitter;
  const auto cut = splitter.scan(text);
  CHECK_EQUAL(cut.first_event_end, text.find("}, {") + 1);
  CHECK_EQUAL(cut.last_event_end, text.size());
  CHECK_EQUAL(cut.array_end, EventSplitter::kNone);
}

TEST(braces_and_brackets_inside_strings_are_text) {
  const std::string text = R"({"name": "a } ] { \" } \\"}, {"x": [1, {"y": "]"}]} ] tail])";
  for (std::size_t piece = 1; piece <= 130; ++piece) {
    const Ends ends = scan_in_pieces(text, piece);
    CHECK_EQUAL(ends.array, text.find(" ] tail") + 1);
    CHECK_EQUAL(ends.events.back(), text.find(" ] tail"));
  }
}

TEST(an_escape_may_straddle_two_pieces_and_two_blocks) {
  // The backslash is the last byte of a block of 64, the quote that it escapes the first of the next.
  const std::string head = R"({"n": ")";
  const std::string text = head + std::string(63 - head.size(), 'x') + "\\\"}\"}";
  for (std::size_t piece = 1; piece <= 80; ++piece) {
    const Ends ends = scan_in_pieces(text, piece);
    CHECK_EQUAL(ends.events.size(), 1U);
    CHECK_EQUAL(ends.events.back(), text.size());
  }
}

TEST(the_array_may_end_before_the_first_event_and_a_stray_closing_brace_is_ignored) {
  CHECK_EQUAL(scan_in_pieces("  ]", 64).array, 2U);
  const Ends ends = scan_in_pieces("} {\"a\":1} ]", 64);
  CHECK_EQUAL(ends.array, 10U);
  CHECK_EQUAL(ends.events.back(), 9U);
}
