#include "trace/parsing/repair_text.hpp"

#include <simdjson.h>

#include <cstddef>

namespace xmem::trace {
namespace {

// Length of the UTF-8 sequence that the lead byte announces, 0 when it announces none.
std::size_t announced_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

std::string repair_text(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string repaired;
  repaired.reserve(text.size() + 16);
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0x20) {
      repaired += ' ';
      ++at;
      continue;
    }
    const std::size_t length = announced_length(lead);
    if (length == 1) {
      repaired += text[at++];
    } else if (length != 0 && at + length <= text.size() && simdjson::validate_utf8(text.substr(at, length))) {
      repaired.append(text, at, length);
      at += length;
    } else {
      repaired += kReplacement;
      ++at;
    }
  }
  return repaired;
}

}  // namespace xmem::trace
