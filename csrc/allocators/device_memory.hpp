// A device of a given capacity: what cudaMalloc and the driver's virtual memory calls would answer.
//
// Success is a matter of bytes alone: the driver pages physical memory, so contiguity is never the reason for a
// failure. Addresses follow one of two fixed rules; freed ranges coalesce. Real drivers mix the two, and only the
// address tie-break of older PyTorch versions can notice.
#pragma once

#include <cstdint>

#include "allocators/concepts.hpp"
#include "allocators/free_ranges.hpp"

namespace xmem::allocators {

// Far above any device and still far from overflowing sums of bytes.
inline constexpr Bytes kUnlimitedBytes = Bytes{1} << 60;

// As public recordings of real GPUs show them (docs/allocator_model.md, section 7).
enum class AddressOrder : std::uint8_t {
  kAscending = 0,   // the lowest free gap that is long enough
  kDescending = 1,  // whole chunks from the top down; what a chunk has left serves later requests
};

struct DeviceProperties {
  Bytes capacity = kUnlimitedBytes;    // total physical memory
  Bytes other_bytes = 0;               // held by others on the device: CUDA context, libraries, other processes
  Bytes granularity = Bytes{2} << 20;  // physical page: 2 MiB on every GPU since Pascal
  AddressOrder order = AddressOrder::kAscending;
};

class SimulatedDevice {
 public:
  // Throws ConfigError when the capacity is not positive or the others leave nothing.
  explicit SimulatedDevice(DeviceProperties properties = {});

  std::optional<Bytes> allocate(Bytes size);
  void release(Bytes address, Bytes size);
  Bytes reserve(Bytes size);
  void unreserve(Bytes address, Bytes size);
  bool map(Bytes address, Bytes size);
  void unmap(Bytes address, Bytes size);
  Bytes free_bytes() const { return properties_.capacity - properties_.other_bytes - used_; }
  Bytes total_bytes() const { return properties_.capacity; }

 private:
  Bytes whole_pages(Bytes size) const;
  Bytes reserve_from_top(Bytes length);

  DeviceProperties properties_;
  Bytes used_ = 0;
  FreeRanges gaps_;
  // Where the range without end begins, or, in descending order, ends; no gap touches it.
  Bytes endless_;
};
static_assert(DeviceMemory<SimulatedDevice>);

}  // namespace xmem::allocators
