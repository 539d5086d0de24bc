#include "allocators/device_memory.hpp"

#include <string>

#include "base/error.hpp"

namespace xmem::allocators {
namespace {
// Where the CUDA driver usually maps device memory on Linux, so that exported snapshots look familiar.
constexpr Bytes kFirstAddress = 0x7f0000000000;

// Ranges of expandable segments on a device without limit take 128 TiB each: from here down many fit above 0, and all
// addresses are exact in JavaScript.
constexpr Bytes kTopAddress = Bytes{1} << 52;

// What a driver that goes from the top down reserves at a time.
constexpr Bytes kChunkBytes = Bytes{32} << 20;
}  // namespace

SimulatedDevice::SimulatedDevice(DeviceProperties properties)
    : properties_(properties),
      gaps_(properties.granularity),
      endless_(properties.order == AddressOrder::kDescending ? kTopAddress : kFirstAddress) {
  if (properties_.capacity <= 0 || properties_.capacity > kUnlimitedBytes) {
    throw ConfigError("a capacity of " + std::to_string(properties_.capacity) + " bytes is out of range",
                      "use one above 0 and at most 2^60 bytes; give the memory of the GPU");
  }
  if (properties_.other_bytes < 0 || properties_.other_bytes > properties_.capacity) {
    throw ConfigError(std::to_string(properties_.other_bytes) + " bytes cannot be held by others",
                      "use between 0 and the capacity of " + std::to_string(properties_.capacity) + " bytes");
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
  if (const auto found = gaps_.take_lowest(length)) return *found;
  const Bytes address = endless_;
  endless_ += length;
  return address;
}

Bytes SimulatedDevice::reserve_from_top(Bytes length) {
  if (const auto found = gaps_.take_highest(length)) return *found;
  const Bytes end = endless_;
  endless_ -= (length + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  if (endless_ + length < end) gaps_.add(endless_ + length, end);
  return endless_;
}

void SimulatedDevice::unreserve(Bytes address, Bytes size) {
  gaps_.add(address, address + whole_pages(size));
  const bool descends = properties_.order == AddressOrder::kDescending;
  // What touches the endless range becomes a part of it.
  if (const auto other = descends ? gaps_.remove_from(endless_) : gaps_.remove_until(endless_)) endless_ = *other;
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
