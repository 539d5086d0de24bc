#include "trace/parsing/event_extent.hpp"

#include <vector>

namespace xmem::trace {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Whether the last two signs of the text but for spaces are a comma and, if it is asked for, a '}' before it.
bool ends_an_element(std::string_view text, bool with_brace) {
  const std::size_t comma = text.find_last_not_of(kSpaces);
  if (comma == std::string_view::npos || text[comma] != ',') return false;
  const std::size_t brace = text.substr(0, comma).find_last_not_of(kSpaces);
  return !with_brace || (brace != std::string_view::npos && text[brace] == '}');
}

// Whether the text is `"k` but for spaces before it, with k a letter.
bool begins_a_key(std::string_view text) {
  const std::size_t quote = text.find_first_not_of(kSpaces);
  return quote != std::string_view::npos && text[quote] == '"' && quote + 1 < text.size() && is_letter(text[quote + 1]);
}

}  // namespace

EventExtent event_extent(std::string_view text) {
  std::vector<char> open;  // brackets
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '{' && at > 0 && (in_string || open.back() == '{') && begins_a_key(text.substr(at + 1)) &&
        ends_an_element(text.substr(0, at), in_string)) {
      return {at, EventEnd::damaged};
    }
    if (c == '\\') {
      ++at;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      continue;
    } else if (c == '{' || c == '[') {
      open.push_back(c);
    } else if (c == ']' && open.back() == '[') {
      open.pop_back();
    } else if (c == '}') {
      while (open.back() == '[') open.pop_back();  // a ']' was lost
      open.pop_back();
      if (open.empty()) return {at + 1, EventEnd::closed};
    }
  }
  return {text.size(), EventEnd::open};
}

}  // namespace xmem::trace
