#include "trace/parsing/json_scan.hpp"

namespace xmem::trace {

std::size_t string_end(std::string_view text, std::size_t at) {
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return kIncomplete;
}

std::size_t value_end(std::string_view text, std::size_t at) {
  if (text[at] == '"') return string_end(text, at);
  if (text[at] != '{' && text[at] != '[') {
    const auto end = text.find_first_of(",]} \t\r\n", at);
    return end == std::string_view::npos ? kIncomplete : end;
  }
  std::size_t depth = 0;
  for (std::size_t i = at; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = string_end(text, i);
      if (i == kIncomplete) return kIncomplete;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return i + 1;
    ++i;
  }
  return kIncomplete;
}

}  // namespace xmem::trace
