// Any model of DeviceMemory behind one type, so that an allocator is compiled once. Does not own the device.
//
// An allocator reaches the device once in hundreds of requests: an indirect call costs nothing there.
#pragma once

#include "allocators/concepts.hpp"

namespace xmem::allocators {

class DeviceReference {
 public:
  template <DeviceMemory Device>
    requires(!std::same_as<Device, DeviceReference>)
  explicit DeviceReference(Device& device) : device_(&device), calls_(&kCallsOf<Device>) {}

  std::optional<Bytes> allocate(Bytes size) { return calls_->allocate(device_, size); }
  void release(Bytes address, Bytes size) { calls_->release(device_, address, size); }
  Bytes reserve(Bytes size) { return calls_->reserve(device_, size); }
  void unreserve(Bytes address, Bytes size) { calls_->unreserve(device_, address, size); }
  bool map(Bytes address, Bytes size) { return calls_->map(device_, address, size); }
  void unmap(Bytes address, Bytes size) { calls_->unmap(device_, address, size); }
  Bytes free_bytes() const { return calls_->free_bytes(device_); }
  Bytes total_bytes() const { return calls_->total_bytes(device_); }

 private:
  struct Calls {
    std::optional<Bytes> (*allocate)(void*, Bytes);
    void (*release)(void*, Bytes, Bytes);
    Bytes (*reserve)(void*, Bytes);
    void (*unreserve)(void*, Bytes, Bytes);
    bool (*map)(void*, Bytes, Bytes);
    void (*unmap)(void*, Bytes, Bytes);
    Bytes (*free_bytes)(const void*);
    Bytes (*total_bytes)(const void*);
  };

  template <class Device>
  static constexpr Calls kCallsOf = {
      [](void* device, Bytes size) { return static_cast<Device*>(device)->allocate(size); },
      [](void* device, Bytes address, Bytes size) { static_cast<Device*>(device)->release(address, size); },
      [](void* device, Bytes size) { return static_cast<Device*>(device)->reserve(size); },
      [](void* device, Bytes address, Bytes size) { static_cast<Device*>(device)->unreserve(address, size); },
      [](void* device, Bytes address, Bytes size) { return static_cast<Device*>(device)->map(address, size); },
      [](void* device, Bytes address, Bytes size) { static_cast<Device*>(device)->unmap(address, size); },
      [](const void* device) { return static_cast<const Device*>(device)->free_bytes(); },
      [](const void* device) { return static_cast<const Device*>(device)->total_bytes(); },
  };

  void* device_;
  const Calls* calls_;
};
static_assert(DeviceMemory<DeviceReference>);

}  // namespace xmem::allocators
