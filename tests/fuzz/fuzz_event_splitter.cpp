// The splitter finds the ends that a splitter finds which looks at one byte after the other, in pieces of any size.
#include <utility>

#include "fuzz_target.hpp"
#include "trace/parsing/event_splitter.hpp"

using xmem::fuzz::require;
using xmem::trace::EventSplitter;

namespace {

// The same rules, a byte at a time.
class SlowSplitter {
 public:
  EventSplitter::Cut scan(std::string_view text) {
    EventSplitter::Cut cut;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (is_array_end(text[at], at, cut)) {
        cut.array_end = at;
        return cut;
      }
    }
    return cut;
  }

 private:
  bool is_array_end(char c, std::size_t at, EventSplitter::Cut& cut) {
    const bool escaped = std::exchange(escaped_, false);
    if (c == '\\') escaped_ = !escaped;
    if (c == '"' && !escaped) in_string_ = !in_string_;
    if (in_string_) return false;
    if (c == '{') {
      ++braces_;
    } else if (c == '}' && braces_ > 0) {
      if (--braces_ == 0 && brackets_ == 0) {
        cut.last_event_end = at + 1;
        if (cut.first_event_end == EventSplitter::kNone) cut.first_event_end = at + 1;
      }
    } else if (braces_ == 0 && c == '[') {
      ++brackets_;
    } else if (braces_ == 0 && c == ']') {
      return --brackets_ < 0;
    }
    return false;
  }

  bool in_string_ = false;
  bool escaped_ = false;
  int braces_ = 0;
  int brackets_ = 0;
};

void compare(std::string_view text, const auto& next_piece) {
  EventSplitter splitter;
  SlowSplitter slow;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, next_piece(text.size()));
    const EventSplitter::Cut found = splitter.scan(piece);
    const EventSplitter::Cut expected = slow.scan(piece);
    require(found.first_event_end == expected.first_event_end, "the first event ends where a slow splitter says");
    require(found.last_event_end == expected.last_event_end, "the last event ends where a slow splitter says");
    require(found.array_end == expected.array_end, "the array ends where a slow splitter says");
    if (found.array_end != EventSplitter::kNone) return;
    text.remove_prefix(piece.size());
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file = xmem::fuzz::as_text(data, size);
  // The splitter sees what follows the bracket of the array.
  const std::string_view text = file.substr(std::min(file.size(), file.find('[') + 1));
  xmem::fuzz::Pieces pieces(text);
  compare(text, [](std::size_t left) { return left; });
  compare(text, [&](std::size_t) { return pieces.next(); });
  return 0;
}
