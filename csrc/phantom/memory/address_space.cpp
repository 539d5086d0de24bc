#include "memory/address_space.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "machine/machine.hpp"

namespace xmem::phantom {
namespace {

// Of 128 TiB that a process has, what is left in one piece wherever its program and libraries were loaded.
constexpr std::uint64_t kAllSpans = std::uint64_t{64} << 40;
// Room for many expandable segments, each of which reserves more than the whole device.
constexpr std::uint64_t kLargestSpan = std::uint64_t{4} << 40;
// What a driver reserves at a time.
constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
// Where nothing else is, should the reservation be refused (a limit on address space): the comparison still holds.
constexpr std::uint64_t kUnreservedBase = std::uint64_t{0x200000000000};

// Of addresses, for each device.
std::uint64_t device_span() {
  static const std::uint64_t span = [] {
    const std::uint64_t share = kAllSpans / static_cast<std::uint64_t>(std::max(machine().count(), 1));
    return std::min(kLargestSpan, share / kPageBytes * kPageBytes);
  }();
  return span;
}

std::uint64_t base_address() {
  static const std::uint64_t base = [] {
    const std::uint64_t span = device_span() * static_cast<std::uint64_t>(std::max(machine().count(), 1));
    void* map = mmap(nullptr, span + kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return kUnreservedBase;
    madvise(map, span + kPageBytes, MADV_DONTDUMP);
    return whole_pages(reinterpret_cast<std::uint64_t>(map));
  }();
  return base;
}

}  // namespace

int device_of(const void* address) {
  const std::uint64_t offset = reinterpret_cast<std::uint64_t>(address) - base_address();
  const std::uint64_t device = offset / device_span();
  return device < static_cast<std::uint64_t>(machine().count()) ? static_cast<int>(device) : -1;
}

AddressRanges::AddressRanges(int device) {
  const std::uint64_t begin = base_address() + device_span() * static_cast<std::uint64_t>(device);
  gaps_.push_back({begin + kPageBytes, begin + device_span()});
}

std::uint64_t AddressRanges::reserve(std::uint64_t length, std::uint64_t alignment) {
  alignment = std::max(alignment, kPageBytes);
  for (std::size_t i = gaps_.size(); i-- > 1;) {
    const std::uint64_t begin = (gaps_[i].begin + alignment - 1) / alignment * alignment;
    if (begin <= gaps_[i].end && gaps_[i].end - begin >= length) return cut(i, begin, length);
  }
  if (gaps_.empty() || length > gaps_.front().end) return 0;
  const Gap& below = gaps_.front();
  const std::uint64_t chunk = std::min((length + kChunkBytes - 1) / kChunkBytes * kChunkBytes, below.end);
  const std::uint64_t begin = (below.end - chunk) / alignment * alignment;
  if (begin >= below.begin) return cut(0, begin, length);
  const std::uint64_t last = (below.end - length) / alignment * alignment;
  return last >= below.begin ? cut(0, last, length) : 0;
}

std::uint64_t AddressRanges::cut(std::size_t place, std::uint64_t begin, std::uint64_t length) {
  const Gap rest{begin + length, gaps_[place].end};
  gaps_[place].end = begin;
  const auto gap = gaps_.begin() + static_cast<std::ptrdiff_t>(place);
  if (rest.begin < rest.end) gaps_.insert(gap + 1, rest);
  if (gaps_[place].begin == gaps_[place].end) gaps_.erase(gaps_.begin() + static_cast<std::ptrdiff_t>(place));
  return begin;
}

void AddressRanges::release(std::uint64_t address, std::uint64_t length) {
  auto next = std::find_if(gaps_.begin(), gaps_.end(), [&](const Gap& gap) { return gap.begin > address; });
  next = gaps_.insert(next, {address, address + length});
  if (next + 1 != gaps_.end() && next->end == (next + 1)->begin) {
    next->end = (next + 1)->end;
    gaps_.erase(next + 1);
  }
  if (next != gaps_.begin() && (next - 1)->end == next->begin) {
    (next - 1)->end = next->end;
    gaps_.erase(next);
  }
}

}  // namespace xmem::phantom
