// The profiler names a Python frame `PATH(LINE): FUNCTION`.
#pragma once

#include <cstddef>
#include <string_view>

namespace xmem::trace {

// Length of PATH, which ends in ".py"; npos when the name is of another form.
inline std::size_t python_file_end(std::string_view frame) {
  constexpr std::string_view kOpen = ".py(";
  for (std::size_t at = frame.find(kOpen); at != std::string_view::npos; at = frame.find(kOpen, at + 1)) {
    const std::size_t line = at + kOpen.size();
    const std::size_t after = frame.find_first_not_of("0123456789", line);
    if (after != std::string_view::npos && after > line && frame.substr(after).starts_with("): ")) return line - 1;
  }
  return std::string_view::npos;
}

}  // namespace xmem::trace
