#include "allocators/device_allocator.hpp"

#include <stdexcept>

#include "allocators/caching/rounding.hpp"

namespace xmem::allocators {
namespace {
constexpr Bytes kAlignment = 256;
}  // namespace

BlockHandle DeviceAllocator::allocate(Bytes request, StreamHandle) {
  const Bytes size = round_up(request, kAlignment);
  const Bytes free_before = device_.free_bytes();
  const std::optional<Bytes> address = device_.allocate(size);
  if (!address) return {};
  const Bytes charged = free_before - device_.free_bytes();
  allocated_ += size;
  reserved_ += charged;
  requested_ += request;
  return table_.add({*address, size, request, charged});
}

void DeviceAllocator::free(BlockHandle freed) {
  const Allocation& allocation = table_[freed];
  device_.release(allocation.address, allocation.size);
  allocated_ -= allocation.size;
  reserved_ -= allocation.charged;
  requested_ -= allocation.requested;
  table_.remove(freed);
}

void DeviceAllocator::check_invariants() const {
  if (reserved_ < allocated_) throw std::logic_error("device allocator: the device charged less than it gave");
  if (table_.count() == 0 && (reserved_ != 0 || requested_ != 0)) {
    throw std::logic_error("device allocator: bytes are held by no allocation");
  }
}

}  // namespace xmem::allocators
