// Device memory, copies and settings through the driver, where its functions are not the runtime's under another name.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/cuda_types.hpp"
#include "abi/driver_types.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"
#include "memory/host_memory.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

void* pointer(DeviceAddress address) {
  return reinterpret_cast<void*>(address);
}

// Captured work goes into the graph; other work happens at once.
bool captured(void* stream) {
  const auto capture = capture_of(stream);
  if (capture == nullptr) return false;
  capture->graph->nodes.fetch_add(1);
  return true;
}

int copy_on(void* stream, void* target, const void* source, std::size_t size) {
  if (!captured(stream)) copy(target, source, size);
  return kSuccess;
}

template <typename Element>
int fill(DeviceAddress address, Element value, std::size_t count) {
  if (device_of(pointer(address)) >= 0) {
    device_cleared(pointer(address), count * sizeof value);
    return kSuccess;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(pointer(address)) + i * sizeof value, &value, sizeof value);
  }
  return kSuccess;
}

template <typename Element>
int fill_on(void* stream, DeviceAddress address, Element value, std::size_t count) {
  return captured(stream) ? static_cast<int>(kSuccess) : fill(address, value, count);
}

}  // namespace

PHANTOM_EXPORT int cuMemAlloc_v2(DeviceAddress* address, std::size_t size) {
  note(Function::cuMemAlloc_v2);
  if (address == nullptr || size == 0) return kInvalidValue;
  void* found = nullptr;
  const int error = allocate(current_device(), size, &found);
  *address = reinterpret_cast<DeviceAddress>(found);
  return error;
}

PHANTOM_EXPORT int cuMemFree_v2(DeviceAddress address) {
  note(Function::cuMemFree_v2);
  wait_for_device();
  return release_host(pointer(address)) ? static_cast<int>(kSuccess) : release(pointer(address));
}

PHANTOM_EXPORT int cuMemcpyAsync(DeviceAddress target, DeviceAddress source, std::size_t size, void* stream) {
  note(Function::cuMemcpyAsync);
  return copy_on(stream, pointer(target), pointer(source), size);
}

PHANTOM_EXPORT int cuMemsetD8_v2(DeviceAddress address, unsigned char value, std::size_t count) {
  note(Function::cuMemsetD8_v2);
  return fill(address, value, count);
}

PHANTOM_EXPORT int cuMemsetD16_v2(DeviceAddress address, unsigned short value, std::size_t count) {
  note(Function::cuMemsetD16_v2);
  return fill(address, value, count);
}

PHANTOM_EXPORT int cuMemsetD32_v2(DeviceAddress address, unsigned value, std::size_t count) {
  note(Function::cuMemsetD32_v2);
  return fill(address, value, count);
}

PHANTOM_EXPORT int cuMemsetD8Async(DeviceAddress address, unsigned char value, std::size_t count, void* stream) {
  note(Function::cuMemsetD8Async);
  return fill_on(stream, address, value, count);
}

PHANTOM_EXPORT int cuMemsetD16Async(DeviceAddress address, unsigned short value, std::size_t count, void* stream) {
  note(Function::cuMemsetD16Async);
  return fill_on(stream, address, value, count);
}

PHANTOM_EXPORT int cuMemsetD32Async(DeviceAddress address, unsigned value, std::size_t count, void* stream) {
  note(Function::cuMemsetD32Async);
  return fill_on(stream, address, value, count);
}
