#include "allocators/device_memory.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace xmem::allocators {
namespace {
// Where the CUDA driver usually maps device memory on Linux, so that exported snapshots look familiar.
constexpr Bytes kFirstAddress = 0x7f0000000000;

// Ranges of expandable segments on a device without limit take 128 TiB each: from here down many fit above 0, and all
// addresses are exact in JavaScript.
constexpr Bytes kTopAddress = Bytes{1} << 52;
constexpr Bytes kLowestAddress = std::numeric_limits<Bytes>::min();

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
    gaps_.emplace(kFirstAddress, std::numeric_limits<Bytes>::max());
  } else {
    gaps_.emplace(kLowestAddress, kTopAddress);
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
  // The last gap is endless: there is always one.
  const auto gap = std::ranges::find_if(gaps_, [&](const auto& g) { return g.second - g.first >= length; });
  return take(gap, length);
}

Bytes SimulatedDevice::reserve_from_top(Bytes length) {
  if (length <= longest_rest_) {
    Bytes longest = 0;
    for (auto gap = gaps_.end(); --gap != gaps_.begin();) {
      const Bytes size = gap->second - gap->first;
      if (size >= length) return take(gap, length);
      longest = std::max(longest, size);
    }
    longest_rest_ = longest;
  }
  const auto below = gaps_.begin();
  const Bytes end = below->second;
  const Bytes address = end - (length + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  below->second = address;
  if (address + length < end) add_gap(address + length, end);
  return address;
}

Bytes SimulatedDevice::take(Gaps::iterator gap, Bytes length) {
  const auto [address, end] = *gap;
  gaps_.erase(gap);
  if (address + length < end) gaps_.emplace(address + length, end);
  return address;
}

void SimulatedDevice::add_gap(Bytes begin, Bytes end) {
  gaps_.emplace(begin, end);
  if (begin != kLowestAddress) longest_rest_ = std::max(longest_rest_, end - begin);
}

void SimulatedDevice::unreserve(Bytes address, Bytes size) {
  Bytes begin = address, end = address + whole_pages(size);
  auto next = gaps_.upper_bound(address);
  if (next != gaps_.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
    gaps_.erase(std::prev(next));
  }
  if (next != gaps_.end() && next->first == end) {
    end = next->second;
    gaps_.erase(next);
  }
  add_gap(begin, end);
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
