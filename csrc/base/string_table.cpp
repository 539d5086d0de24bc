#include "base/string_table.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace xmem {
namespace {
constexpr std::size_t kInitialSlots = 1024;
constexpr std::size_t kSlabBytes = std::size_t{1} << 16;
}  // namespace

StringTable::StringTable() : slots_(kInitialSlots) {}

NameId StringTable::intern(std::string_view text) {
  const std::size_t hash = std::hash<std::string_view>{}(text);
  std::size_t slot = slot_of(text, hash);
  if (!slots_[slot].is_none()) return slots_[slot];
  if (2 * (texts_.size() + 1) > slots_.size()) {
    grow();
    slot = slot_of(text, hash);
  }
  const NameId id{static_cast<std::int32_t>(texts_.size())};
  texts_.push_back(store(text));
  hashes_.push_back(hash);
  slots_[slot] = id;
  return id;
}

NameId StringTable::find(std::string_view text) const {
  return slots_[slot_of(text, std::hash<std::string_view>{}(text))];
}

std::size_t StringTable::slot_of(std::string_view text, std::size_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  while (!slots_[slot].is_none()) {
    const auto index = static_cast<std::size_t>(slots_[slot].value);
    if (hashes_[index] == hash && texts_[index] == text) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

std::string_view StringTable::store(std::string_view text) {
  if (text.size() > slab_free_) {
    const std::size_t bytes = std::max(kSlabBytes, text.size());
    slabs_.push_back(std::make_unique<char[]>(bytes));
    slab_next_ = slabs_.back().get();
    slab_free_ = bytes;
  }
  if (!text.empty()) std::memcpy(slab_next_, text.data(), text.size());
  const std::string_view stored(slab_next_, text.size());
  slab_next_ += text.size();
  slab_free_ -= text.size();
  return stored;
}

void StringTable::grow() {
  std::vector<NameId> wider(slots_.size() * 2);
  const std::size_t mask = wider.size() - 1;
  for (std::size_t id = 0; id < hashes_.size(); ++id) {
    std::size_t slot = hashes_[id] & mask;
    while (!wider[slot].is_none()) slot = (slot + 1) & mask;
    wider[slot] = NameId{static_cast<std::int32_t>(id)};
  }
  slots_ = std::move(wider);
}

}  // namespace xmem
