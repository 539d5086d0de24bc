// Where an event ends, also where its own text hides the end: the careful twin of EventSplitter, for damaged text.
//
// A lost quote turns strings inside out from there on, a lost '}' leaves the event open: to the splitter, what follows
// is all one event. But some texts cannot lie inside an event, since JSON allows no such thing there: `}, {"k`, with k
// a letter, in a string, or `, {"k` among the members of an object. There the next event begins. Works on any layout,
// since it looks at nothing but JSON's own signs. Byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace xmem::trace {

enum class EventEnd : std::uint8_t {
  closed,   // at its own '}'
  damaged,  // at the '{' of the event after it
  open,     // neither was found
};

struct EventExtent {
  std::size_t length;
  EventEnd end;
};

// The event that begins the text, with '{'.
EventExtent event_extent(std::string_view text);

}  // namespace xmem::trace
