#include "allocators/device_memory.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace xmem::allocators {
namespace {
// Where the CUDA driver usually maps device memory on Linux, so that exported snapshots look familiar.
constexpr Bytes kFirstAddress = 0x7f0000000000;

// What a driver that goes from the top down reserves at a time.
constexpr Bytes kChunkBytes = Bytes{32} << 20;
}  // namespace

SimulatedDevice::SimulatedDevice(DeviceProperties properties) : properties_(properties) {
  if (properties_.capacity <= 0 || properties_.capacity > kUnlimitedBytes) {
    throw ConfigError("a capacity of " + std::to_string(properties_.capacity) + " bytes is out of range",
                      "use one above 0 and at most 2^60 bytes; give the memory of the GPU");
  }
  if (properties_.other_bytes < 0 || properties_.other_bytes > properties_.capacity) {
    throw ConfigError(std::to_string(properties_.other_bytes) + " bytes cannot be held by others",
                      "use between 0 and the capacity of " + std::to_string(properties_.capacity) + " bytes");
  }
  if (properties_.order == AddressOrder::kAscending) {
    gaps_.push_back({kFirstAddress, std::numeric_limits<Bytes>::max()});
  } else {
    gaps_.push_back({std::numeric_limits<Bytes>::min(), kFirstAddress});
  }
}

std::optional<Bytes> SimulatedDevice::allocate(Bytes size) {
  const Bytes pages = whole_pages(size);
  if (pages > free_bytes()) return std::nullopt;
  used_ += pages;
  return reserve(size);
}

void SimulatedDevice::release(Bytes address, Bytes size) {
  used_ -= whole_pages(size);
  unreserve(address, size);
}

Bytes SimulatedDevice::reserve(Bytes size) {
  const Bytes length = whole_pages(size);
  if (properties_.order == AddressOrder::kDescending) return reserve_from_top(length);
  const auto gap = std::ranges::find_if(gaps_, [&](const Gap& g) { return g.end - g.begin >= length; });
  const Bytes address = gap->begin;  // the last gap is endless: there is always one
  gap->begin += length;
  if (gap->begin == gap->end) gaps_.erase(gap);
  return address;
}

Bytes SimulatedDevice::reserve_from_top(Bytes length) {
  for (auto gap = gaps_.rbegin(); gap + 1 != gaps_.rend(); ++gap) {
    if (gap->end - gap->begin < length) continue;
    const Bytes address = gap->begin;
    gap->begin += length;
    if (gap->begin == gap->end) gaps_.erase(gap.base() - 1);
    return address;
  }
  Gap& below = gaps_.front();
  const Bytes end = below.end;
  const Bytes address = end - (length + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  below.end = address;
  if (address + length < end) gaps_.insert(gaps_.begin() + 1, {address + length, end});
  return address;
}

void SimulatedDevice::unreserve(Bytes address, Bytes size) {
  const Bytes end = address + whole_pages(size);
  auto next = std::ranges::upper_bound(gaps_, address, {}, &Gap::begin);
  const bool joins_previous = next != gaps_.begin() && std::prev(next)->end == address;
  const bool joins_next = next != gaps_.end() && next->begin == end;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    gaps_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = end;
  } else if (joins_next) {
    next->begin = address;
  } else {
    gaps_.insert(next, {address, end});
  }
}

bool SimulatedDevice::map(Bytes, Bytes size) {
  const Bytes pages = whole_pages(size);
  if (pages > free_bytes()) return false;
  used_ += pages;
  return true;
}

void SimulatedDevice::unmap(Bytes, Bytes size) {
  used_ -= whole_pages(size);
}

Bytes SimulatedDevice::whole_pages(Bytes size) const {
  const Bytes page = properties_.granularity;
  return (size + page - 1) / page * page;
}

}  // namespace xmem::allocators
