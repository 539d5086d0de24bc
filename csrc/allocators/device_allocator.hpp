// No framework allocator at all: every request is a cudaMalloc, every free a cudaFree.
//
// Sizes round up to 256 bytes, the alignment that the CUDA programming guide promises for any allocation. Reserved is
// what the device charges, whole pages in SimulatedDevice; that real drivers pack small allocations into one page is
// not modelled.
#pragma once

#include "allocators/concepts.hpp"
#include "allocators/device_reference.hpp"
#include "allocators/handle_table.hpp"

namespace xmem::allocators {

class DeviceAllocator {
 public:
  // The device must outlive the allocator.
  explicit DeviceAllocator(DeviceReference device) : device_(device) {}

  BlockHandle allocate(Bytes request, StreamHandle stream);
  void free(BlockHandle block);
  void empty_cache() {}  // nothing is kept

  Bytes allocated_bytes() const { return allocated_; }
  Bytes active_bytes() const { return allocated_; }
  Bytes reserved_bytes() const { return reserved_; }
  Bytes requested_bytes() const { return requested_; }
  void check_invariants() const;

 private:
  struct Allocation {
    Bytes address = 0;
    Bytes size = 0;
    Bytes requested = 0;
    Bytes charged = 0;
  };

  DeviceReference device_;
  HandleTable<Allocation> table_;
  Bytes allocated_ = 0;
  Bytes reserved_ = 0;
  Bytes requested_ = 0;
};
static_assert(FrameworkAllocator<DeviceAllocator>);

}  // namespace xmem::allocators
