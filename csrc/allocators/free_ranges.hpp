// Free ranges of addresses: the lowest or the highest one that is long enough is found by its length. Only among ranges
// of 16 pages and more, those of a request's own class are looked through.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include "allocators/concepts.hpp"

namespace xmem::allocators {

class FreeRanges {
 public:
  // Lengths are multiples of `page`.
  explicit FreeRanges(Bytes page) : page_(page) {}

  // Adds a range; ranges that touch become one.
  void add(Bytes begin, Bytes end);

  // Takes `length` bytes from the beginning of the lowest, or of the highest, range that has them.
  std::optional<Bytes> take_lowest(Bytes length);
  std::optional<Bytes> take_highest(Bytes length);

  // Takes away the range that begins, or ends, at an address, and returns its other end; nothing if none does.
  std::optional<Bytes> remove_from(Bytes begin);
  std::optional<Bytes> remove_until(Bytes end);

 private:
  // Exact below 16 pages, then by powers of two: all ranges of a class above that of a request are long enough.
  static constexpr std::size_t kExact = 16;
  static constexpr std::size_t kClasses = kExact + 64;
  using Begins = std::set<Bytes>;

  std::size_t class_of(Bytes length) const;
  template <typename Order, typename Before>
  std::optional<Bytes> take_first(Bytes length, Order in_order, Before is_before);
  Bytes take(Bytes begin, Bytes length);
  void insert(Bytes begin, Bytes end);
  void erase(std::map<Bytes, Bytes>::iterator range);

  Bytes page_;
  std::map<Bytes, Bytes> end_by_begin_;
  std::array<Begins, kClasses> begins_by_class_;
};

}  // namespace xmem::allocators
