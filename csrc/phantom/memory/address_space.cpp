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
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const std::uint64_t begin = (gap->begin + alignment - 1) / alignment * alignment;
    if (begin > gap->end || gap->end - begin < length) continue;
    const Gap rest{begin + length, gap->end};
    gap->end = begin;
    if (gap->begin == gap->end)
      gap = gaps_.erase(gap);
    else
      ++gap;
    if (rest.begin < rest.end) gaps_.insert(gap, rest);
    return begin;
  }
  return 0;
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
