// Finds where events end in a JSON array of objects, without understanding them.
//
// The reader cuts the event array into windows of whole events, so that a file of any size is parsed in bounded memory.
// Cutting needs only three facts about a byte: is it inside a string, how deep are the braces, does it end an object at
// depth zero or the array. They are computed 64 bytes at a time as bit masks; the state is carried over, so the text
// may arrive in any pieces.
//
// Relied on: JSON's own rules for strings and escapes. Wrong when the text is not JSON (an odd number of quotes): then
// no event ends, and the reader's limit on the length of one event ends the matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace xmem::trace {

struct BlockMasks;

class EventSplitter {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  struct Cut {
    std::size_t first_event_end = kNone;  // one past the '}' of the first event that ends in the text
    std::size_t last_event_end = kNone;   // and of the last one
    std::size_t array_end = kNone;  // position of the ']' that closes the event array; nothing after it is looked at
  };

  // Continues over the next bytes of the array; positions are relative to `text`.
  Cut scan(std::string_view text);

 private:
  struct Block {
    const char* text;    // 64 bytes
    std::size_t length;  // of which so many are the array's
    std::size_t base;    // position of the first one
  };

  bool walk(const Block& block, const BlockMasks& masks, Cut& cut);
  bool walk_between_events(const Block& block, std::uint64_t bytes, Cut& cut);

  std::int64_t depth_ = 0;        // of braces
  std::int64_t array_depth_ = 0;  // of brackets outside of braces: elements that are no events
  std::uint64_t in_string_ = 0;   // all ones inside a string, else zero
  std::uint64_t escape_ = 0;      // 1 when the next byte is escaped
};

}  // namespace xmem::trace
