// Entries behind block handles; the number of a removed entry is used again, latest first.
#pragma once

#include <cstddef>
#include <vector>

#include "allocators/ids.hpp"

namespace xmem::allocators {

template <class Entry>
class HandleTable {
 public:
  BlockHandle add(const Entry& entry) {
    if (unused_.empty()) {
      entries_.push_back(entry);
      return {static_cast<std::int32_t>(entries_.size() - 1)};
    }
    const BlockHandle handle = unused_.back();
    unused_.pop_back();
    (*this)[handle] = entry;
    return handle;
  }
  void remove(BlockHandle handle) { unused_.push_back(handle); }

  Entry& operator[](BlockHandle handle) { return entries_[static_cast<std::size_t>(handle.value)]; }
  const Entry& operator[](BlockHandle handle) const { return entries_[static_cast<std::size_t>(handle.value)]; }
  std::size_t count() const { return entries_.size() - unused_.size(); }

 private:
  std::vector<Entry> entries_;
  std::vector<BlockHandle> unused_;
};

}  // namespace xmem::allocators
