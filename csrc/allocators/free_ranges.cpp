#include "allocators/free_ranges.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <ranges>

namespace xmem::allocators {

void FreeRanges::add(Bytes begin, Bytes end) {
  auto next = end_by_begin_.upper_bound(begin);
  if (next != end_by_begin_.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
    erase(std::prev(next));
  }
  if (next != end_by_begin_.end() && next->first == end) {
    end = next->second;
    erase(next);
  }
  insert(begin, end);
}

std::optional<Bytes> FreeRanges::take_lowest(Bytes length) {
  return take_first(length, std::views::all, std::less<>());
}

std::optional<Bytes> FreeRanges::take_highest(Bytes length) {
  return take_first(length, std::views::reverse, std::greater<>());
}

template <typename Order, typename Before>
std::optional<Bytes> FreeRanges::take_first(Bytes length, Order in_order, Before is_before) {
  std::optional<Bytes> found;
  const std::size_t smallest = class_of(length);
  for (std::size_t number = smallest; number < kClasses; ++number) {
    const auto begins = begins_by_class_[number] | in_order;
    auto begin = begins.begin();
    if (number == smallest && number >= kExact) {  // the only class with both
      begin = std::ranges::find_if(begins, [&](Bytes b) { return end_by_begin_.at(b) - b >= length; });
    }
    if (begin != begins.end() && (!found || is_before(*begin, *found))) found = *begin;
  }
  return found ? std::optional(take(*found, length)) : std::nullopt;
}

std::optional<Bytes> FreeRanges::remove_from(Bytes begin) {
  const auto range = end_by_begin_.find(begin);
  if (range == end_by_begin_.end()) return std::nullopt;
  const Bytes end = range->second;
  erase(range);
  return end;
}

std::optional<Bytes> FreeRanges::remove_until(Bytes end) {
  const auto next = end_by_begin_.lower_bound(end);
  if (next == end_by_begin_.begin() || std::prev(next)->second != end) return std::nullopt;
  const Bytes begin = std::prev(next)->first;
  erase(std::prev(next));
  return begin;
}

std::size_t FreeRanges::class_of(Bytes length) const {
  const auto pages = static_cast<std::uint64_t>(length / page_);
  if (pages < kExact) return static_cast<std::size_t>(pages);
  return kExact + static_cast<std::size_t>(std::bit_width(pages / kExact)) - 1;
}

Bytes FreeRanges::take(Bytes begin, Bytes length) {
  const auto range = end_by_begin_.find(begin);
  const Bytes end = range->second;
  erase(range);
  if (begin + length < end) insert(begin + length, end);
  return begin;
}

void FreeRanges::insert(Bytes begin, Bytes end) {
  end_by_begin_.emplace(begin, end);
  begins_by_class_[class_of(end - begin)].insert(begin);
}

void FreeRanges::erase(std::map<Bytes, Bytes>::iterator range) {
  begins_by_class_[class_of(range->second - range->first)].erase(range->first);
  end_by_begin_.erase(range);
}

}  // namespace xmem::allocators
