// The few questions the reader asks about JSON outside of events: where a string or a value ends. Byte by byte, since
// headers are short.
#pragma once

#include <cstddef>
#include <string_view>

namespace xmem::trace {

inline constexpr std::size_t kIncomplete = static_cast<std::size_t>(-1);

// One past the closing quote of the string that begins at `at`; kIncomplete when the text ends before.
std::size_t string_end(std::string_view text, std::size_t at);

// One past the value that begins at `at`; kIncomplete when the text ends before it is certain.
std::size_t value_end(std::string_view text, std::size_t at);

}  // namespace xmem::trace
