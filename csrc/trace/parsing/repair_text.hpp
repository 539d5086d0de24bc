// Makes a JSON text readable that is valid but for its bytes: some tools write paths in other encodings, or raw control
// characters.
#pragma once

#include <string>
#include <string_view>

namespace xmem::trace {

// Bytes that are not UTF-8 become U+FFFD, control characters a space. JSON's own structure is left alone.
std::string repair_text(std::string_view text);

}  // namespace xmem::trace
