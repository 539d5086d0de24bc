// Interned strings: every distinct text is stored once and named by a NameId in order of first use.
//
// Traces repeat a few thousand names in millions of events, so a lookup of a known name must not allocate.
// Texts live in fixed slabs that never move: a view stays valid as long as the table.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/ids.hpp"

namespace xmem {

class StringTable {
 public:
  StringTable();
  StringTable(StringTable&&) = default;
  StringTable& operator=(StringTable&&) = default;
  StringTable(const StringTable&) = delete;  // views into the slabs would belong to the other table
  StringTable& operator=(const StringTable&) = delete;

  NameId intern(std::string_view text);
  NameId find(std::string_view text) const;  // none when the text was never interned
  std::string_view operator[](NameId id) const { return texts_[static_cast<std::size_t>(id.value)]; }
  std::size_t size() const { return texts_.size(); }

 private:
  std::size_t slot_of(std::string_view text, std::size_t hash) const;
  std::string_view store(std::string_view text);
  void grow();

  std::vector<std::string_view> texts_;
  std::vector<std::size_t> hashes_;  // by id, so that growing does not read the texts again
  std::vector<NameId> slots_;        // open addressing, linear probing, a power of two long
  std::vector<std::unique_ptr<char[]>> slabs_;
  std::size_t slab_free_ = 0;
  char* slab_next_ = nullptr;
};

}  // namespace xmem
