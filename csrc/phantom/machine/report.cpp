#include "machine/report.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "machine/calls.hpp"
#include "machine/ledger.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom {
namespace {

void append(std::string& json, const char* key, std::int64_t value) {
  json += json.back() == '{' ? "\"" : ", \"";
  json += key;
  json += "\": " + std::to_string(value);
}

}  // namespace

std::string cards_as_json() {
  std::string json = "[";
  for (int card = 0; card < static_cast<int>(machine().cards.size()); ++card) {
    const CardUse use = card_use(card);
    if (use.contexts == 0) continue;
    json += json.size() > 1 ? ", {" : "{";
    append(json, "card", card);
    append(json, "peak_bytes", use.bytes);
    append(json, "contexts", use.contexts);
    append(json, "context_bytes", use.context_bytes);
    append(json, "nccl_bytes", use.use_bytes[static_cast<unsigned>(Use::kNccl)]);
    append(json, "library_bytes", use.use_bytes[static_cast<unsigned>(Use::kLibrary)]);
    append(json, "managed_bytes", use.managed_bytes);
    append(json, "managed_largest_bytes", use.managed_largest_bytes);
    json += "}";
  }
  return json + "]";
}

std::size_t copy_out(const std::string& text, char* to, std::size_t room) {
  if (room > 0) {
    const std::size_t length = std::min(text.size(), room - 1);
    std::memcpy(to, text.data(), length);
    to[length] = '\0';
  }
  return text.size();
}

}  // namespace xmem::phantom

// For the Python side of a capture (capture/child/xmem_child/records/card_record.py). Writes as much as there is room
// for, and returns how much there is, both without the zero at the end.
PHANTOM_EXPORT std::size_t xmem_phantom_cards(char* text, std::size_t room) {
  return xmem::phantom::copy_out(xmem::phantom::cards_as_json(), text, room);
}

// Kernels that the other live processes of the run have launched: whether they still do something.
PHANTOM_EXPORT std::int64_t xmem_phantom_launches_of_others() {
  return xmem::phantom::launches_of_others();
}

// The card in the machine behind a device of this process; -1: no such device.
PHANTOM_EXPORT int xmem_phantom_card_of(int device) {
  using xmem::phantom::machine;
  return machine().has(device) ? static_cast<int>(machine().card(device)) : -1;
}
