// The driver's devices and contexts. A device has one context, its primary one; the handle is a number made of the
// device.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "abi/cuda_types.hpp"
#include "driver/entry_points.hpp"
#include "loading/redirection.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/device_memory.hpp"
#include "memory/host_memory.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr std::uintptr_t kContextBase = 0xc0de0000;

void* context_of(int device) {
  return reinterpret_cast<void*>(kContextBase + static_cast<unsigned>(device) * 64);
}

int device_of_context(void* context) {
  return static_cast<int>((reinterpret_cast<std::uintptr_t>(context) - kContextBase) / 64);
}

thread_local std::vector<int> pushed_devices;  // below the current one

// CUpointer_attribute
enum PointerAttribute : int {
  kAttributeContext = 1,
  kAttributeMemoryType = 2,
  kAttributeDevicePointer = 3,
  kAttributeHostPointer = 4,
  kAttributeIsManaged = 8,
  kAttributeDeviceOrdinal = 9,
  kAttributeRangeStart = 11,
  kAttributeRangeSize = 12,
};

int pointer_attribute(void* value, int attribute, std::uintptr_t address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  HostBlock block{};
  const int device = device_of(pointer);
  const bool on_host = device < 0 && host_block_of(pointer, &block);
  if (device < 0 && !on_host) return kInvalidValue;
  std::uint64_t base = address, size = 0;
  if (on_host) {
    base = reinterpret_cast<std::uintptr_t>(block.base);
    size = block.size;
  } else {
    allocation_of(pointer, &base, &size);
  }
  switch (attribute) {
    case kAttributeContext:
      *static_cast<void**>(value) = context_of(on_host ? block.device : device);
      break;
    case kAttributeMemoryType:
      *static_cast<unsigned*>(value) = on_host ? 1 : 2;
      break;
    case kAttributeDevicePointer:
    case kAttributeHostPointer:
      *static_cast<std::uintptr_t*>(value) = address;
      break;
    case kAttributeIsManaged:
      *static_cast<int*>(value) = on_host && block.type == kTypeManaged;
      break;
    case kAttributeDeviceOrdinal:
      *static_cast<int*>(value) = on_host ? block.device : device;
      break;
    case kAttributeRangeStart:
      *static_cast<std::uint64_t*>(value) = base;
      break;
    case kAttributeRangeSize:
      *static_cast<std::uint64_t*>(value) = size;
      break;
    default:
      return kNotSupported;
  }
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cuInit(unsigned) {
  note(Function::cuInit);
  redirect_loaded_libraries();
  return machine().count() > 0 ? kSuccess : kNoDevice;
}

PHANTOM_EXPORT int cuDriverGetVersion(int* version) {
  note(Function::cuDriverGetVersion);
  *version = machine().driver_version;
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceGetCount(int* count) {
  note(Function::cuDeviceGetCount);
  *count = machine().count();
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceGet(int* device, int ordinal) {
  note(Function::cuDeviceGet);
  *device = ordinal;
  return machine().has(ordinal) ? kSuccess : kInvalidDevice;
}

PHANTOM_EXPORT int cuDeviceGetName(char* name, int length, int device) {
  note(Function::cuDeviceGetName);
  if (!machine().has(device) || length <= 0) return kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", machine().device(device).name.c_str());
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  note(Function::cuDeviceGetUuid_v2);
  if (!machine().has(device)) return kInvalidDevice;
  std::memcpy(uuid, machine().device(device).uuid.data(), 16);
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  note(Function::cuDeviceTotalMem_v2);
  if (!machine().has(device)) return kInvalidDevice;
  *bytes = static_cast<std::size_t>(machine().device(device).total_memory_bytes);
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  note(Function::cuDeviceGetAttribute);
  if (!machine().has(device)) return kInvalidDevice;
  if (attribute < 1 || attribute > kLastDeviceAttribute) return kInvalidValue;
  *value = machine().device(device).attributes[static_cast<unsigned>(attribute)];
  return kSuccess;
}

PHANTOM_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  note(Function::cuDevicePrimaryCtxRetain);
  if (!machine().has(device)) return kInvalidDevice;
  ensure_context(device);
  *context = context_of(device);
  return kSuccess;
}

PHANTOM_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  note(Function::cuDevicePrimaryCtxGetState);
  if (!machine().has(device)) return kInvalidDevice;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = has_context(device) ? 1 : 0;
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxGetCurrent(void** context) {
  note(Function::cuCtxGetCurrent);
  *context = has_context(current_device()) ? context_of(current_device()) : nullptr;
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxSetCurrent(void* context) {
  note(Function::cuCtxSetCurrent);
  if (context == nullptr) return kSuccess;
  if (!machine().has(device_of_context(context))) return kInvalidContext;
  set_current_device(device_of_context(context));
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxPushCurrent_v2(void* context) {
  note(Function::cuCtxPushCurrent_v2);
  if (!machine().has(device_of_context(context))) return kInvalidContext;
  pushed_devices.push_back(current_device());
  set_current_device(device_of_context(context));
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxPopCurrent_v2(void** context) {
  note(Function::cuCtxPopCurrent_v2);
  if (context != nullptr) *context = context_of(current_device());
  if (pushed_devices.empty()) return kSuccess;
  set_current_device(pushed_devices.back());
  pushed_devices.pop_back();
  return kSuccess;
}

// A second context of a device is its primary one here.
PHANTOM_EXPORT int cuCtxCreate_v2(void** context, unsigned, int device) {
  note(Function::cuCtxCreate_v2);
  if (const int error = cuDevicePrimaryCtxRetain(context, device); error != kSuccess) return error;
  return cuCtxPushCurrent_v2(*context);
}

PHANTOM_EXPORT int cuCtxCreate_v3(void** context, void*, int, unsigned flags, int device) {
  note(Function::cuCtxCreate_v3);
  return cuCtxCreate_v2(context, flags, device);
}

PHANTOM_EXPORT int cuCtxCreate_v4(void** context, void*, unsigned flags, int device) {
  note(Function::cuCtxCreate_v4);
  return cuCtxCreate_v2(context, flags, device);
}

PHANTOM_EXPORT int cuCtxGetDevice(int* device) {
  note(Function::cuCtxGetDevice);
  if (!has_context(current_device())) return kInvalidContext;
  *device = current_device();
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxGetDevice_v2(int* device, void* context) {
  note(Function::cuCtxGetDevice_v2);
  if (context == nullptr) return cuCtxGetDevice(device);
  if (!machine().has(device_of_context(context))) return kInvalidContext;
  *device = device_of_context(context);
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxGetFlags(unsigned* flags) {
  note(Function::cuCtxGetFlags);
  *flags = 0;
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxGetId(void* context, unsigned long long* id) {
  note(Function::cuCtxGetId);
  const int device = context != nullptr ? device_of_context(context) : current_device();
  if (!machine().has(device)) return kInvalidContext;
  *id = static_cast<unsigned long long>(device) + 1;
  return kSuccess;
}

PHANTOM_EXPORT int cuCtxGetApiVersion(void*, unsigned* version) {
  note(Function::cuCtxGetApiVersion);
  *version = 3020;  // of every context since CUDA 3.2
  return kSuccess;
}

// Streams belong to the context of their device.
PHANTOM_EXPORT int cuStreamGetCtx(void* stream, void** context) {
  note(Function::cuStreamGetCtx);
  *context = context_of(stream_of(stream).device);
  return kSuccess;
}

PHANTOM_EXPORT int cuDeviceComputeCapability(int* major, int* minor, int device) {
  note(Function::cuDeviceComputeCapability);
  if (!machine().has(device)) return kInvalidDevice;
  *major = machine().device(device).attribute(kComputeCapabilityMajor);
  *minor = machine().device(device).attribute(kComputeCapabilityMinor);
  return kSuccess;
}

PHANTOM_EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  note(Function::cuMemGetInfo_v2);
  if (!machine().has(current_device())) return kInvalidContext;
  *free = static_cast<std::size_t>(free_bytes(current_device()));
  *total = static_cast<std::size_t>(machine().device(current_device()).total_memory_bytes);
  return kSuccess;
}

PHANTOM_EXPORT int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t address) {
  note(Function::cuPointerGetAttribute);
  return pointer_attribute(value, attribute, address);
}

// What does not apply to an address is left as it is, as the driver does.
PHANTOM_EXPORT int cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                                          std::uintptr_t address) {
  note(Function::cuPointerGetAttributes);
  for (unsigned i = 0; i < count; ++i) pointer_attribute(values[i], attributes[i], address);
  return kSuccess;
}

PHANTOM_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, int* status) {
  note(Function::cuGetProcAddress_v2);
  *function = driver_entry_point(name, version);
  if (status != nullptr) *status = *function != nullptr ? 0 : 1;
  return *function != nullptr ? kSuccess : kNotFound;
}

PHANTOM_EXPORT int cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  note(Function::cuGetProcAddress);
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
