// Large columns on huge pages: the first touch of a column of a million rows is thousands of page faults otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace xmem {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Reserves room for so many rows and asks the kernel for huge pages under it, where whole ones fit, before the rows
// that are there move to it. A hint: what the kernel refuses changes nothing.
template <class T>
void reserve_on_huge_pages(std::vector<T>& column, std::size_t rows) {
  if (rows <= column.capacity()) return;
  std::vector<T> roomy;
  roomy.reserve(rows);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto begin = reinterpret_cast<std::uintptr_t>(roomy.data());
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (begin + rows * sizeof(T)) / kHugePage * kHugePage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
  roomy.assign(column.begin(), column.end());
  column.swap(roomy);
}

// Makes room for one more row in columns of one length, twice as much where there is none.
template <class First, class... Others>
void grow_on_huge_pages(std::vector<First>& first, std::vector<Others>&... others) {
  constexpr std::size_t kFirstRows = 1024;
  if (first.size() < first.capacity()) return;
  const std::size_t rows = std::max(kFirstRows, 2 * first.size());
  reserve_on_huge_pages(first, rows);
  (reserve_on_huge_pages(others, rows), ...);
}

}  // namespace xmem
