// cudaMalloc and its relatives, copies, and what a pointer is.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"
#include "memory/host_memory.hpp"
#include "memory/host_zeros.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

// Up to this size, what comes from pageable memory travels with the command.
constexpr std::size_t kMostBytesInCommand = std::size_t{64} << 10;

bool is_pageable(const void* address) {
  HostBlock block{};
  return device_of(address) < 0 && !host_block_of(address, &block);
}

// The driver copies from pageable memory through a buffer of its own, and to reuse that, "may synchronize with the
// stream" (API synchronization behavior, CUDA 12.4). What goes to pageable memory is there when the call returns.
bool host_waits_for_copy(const void* target, const void* source, std::size_t size) {
  if (!is_behind()) return false;
  return is_pageable(target) || (size > kMostBytesInCommand && is_pageable(source));
}

// Captured copies go into the graph; others happen at once.
int copy_on(void* stream, void* target, const void* source, std::size_t size) {
  if (const auto capture = capture_of(stream)) {
    capture->graph->nodes.fetch_add(1);
    return kSuccess;
  }
  issued(stream);
  if (host_waits_for_copy(target, source, size)) wait_for_stream(stream);
  copy(target, source, size);
  return kSuccess;
}

int copy_rows(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch, std::size_t width,
              std::size_t height) {
  if (target_pitch == width && source_pitch == width) {
    copy(target, source, width * height);
    return kSuccess;
  }
  for (std::size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(target) + row * target_pitch, static_cast<const char*>(source) + row * source_pitch, width);
  }
  return kSuccess;
}

int clear(void* address, int value, std::size_t size) {
  if (device_of(address) >= 0)
    device_cleared(address, size);
  else if (value == 0)
    write_zeros(address, size);
  else
    std::memset(address, value, size);
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cudaMalloc(void** address, std::size_t size) {
  note(Function::cudaMalloc);
  return fail(allocate(current_device(), size, address));
}

PHANTOM_EXPORT int cudaFree(void* address) {
  note(Function::cudaFree);
  if (address == nullptr) {
    ensure_context(current_device());  // the idiom that initializes a device
    return kSuccess;
  }
  wait_for_device();
  if (release_host(address)) return kSuccess;  // managed
  return fail(release(address));
}

PHANTOM_EXPORT int cudaMallocManaged(void** address, std::size_t size, unsigned) {
  note(Function::cudaMallocManaged);
  return fail(allocate_host(size, kTypeManaged, address));
}

PHANTOM_EXPORT int cudaHostAlloc(void** address, std::size_t size, unsigned) {
  note(Function::cudaHostAlloc);
  return fail(allocate_host(size, kTypeHost, address));
}

PHANTOM_EXPORT int cudaMallocHost(void** address, std::size_t size) {
  note(Function::cudaMallocHost);
  return fail(allocate_host(size, kTypeHost, address));
}

PHANTOM_EXPORT int cudaFreeHost(void* address) {
  note(Function::cudaFreeHost);
  return address == nullptr || release_host(address) ? kSuccess : fail(kInvalidValue);
}

PHANTOM_EXPORT int cudaHostRegister(void* address, std::size_t size, unsigned) {
  note(Function::cudaHostRegister);
  return fail(register_host(address, size));
}

PHANTOM_EXPORT int cudaHostUnregister(void* address) {
  note(Function::cudaHostUnregister);
  return unregister_host(address) ? kSuccess : fail(kHostMemoryNotRegistered);
}

PHANTOM_EXPORT int cudaHostGetDevicePointer(void** device_address, void* address, unsigned) {
  note(Function::cudaHostGetDevicePointer);
  *device_address = address;  // unified addressing
  return kSuccess;
}

PHANTOM_EXPORT int cudaHostGetFlags(unsigned* flags, void*) {
  note(Function::cudaHostGetFlags);
  *flags = 0;
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  note(Function::cudaMemGetInfo);
  const int device = current_device();
  if (!machine().has(device)) return fail(kNoDevice);
  ensure_context(device);
  *free = static_cast<std::size_t>(free_bytes(device));
  *total = static_cast<std::size_t>(machine().device(device).total_memory_bytes);
  return kSuccess;
}

PHANTOM_EXPORT int cudaPointerGetAttributes(PointerAttributes* attributes, const void* address) {
  note(Function::cudaPointerGetAttributes);
  if (machine().count() == 0) return fail(kNoDevice);
  std::memset(attributes, 0, cuda_major() < 13 ? kPointerAttributesBytesCuda12 : sizeof *attributes);
  HostBlock block{};
  auto* writable = const_cast<void*>(address);
  if (const int device = device_of(address); device >= 0) {
    attributes->type = kTypeDevice;
    attributes->device = device;
    attributes->device_pointer = writable;
  } else if (host_block_of(address, &block)) {
    attributes->type = block.type;
    attributes->device = block.device;
    attributes->device_pointer = writable;
    attributes->host_pointer = writable;
  } else {
    attributes->type = kTypeUnregistered;
    attributes->device = -2;  // cudaInvalidDeviceId is -2
    attributes->host_pointer = writable;
  }
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemcpy(void* target, const void* source, std::size_t size, int) {
  note(Function::cudaMemcpy);
  wait_for_stream(nullptr);
  copy(target, source, size);
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemcpyAsync(void* target, const void* source, std::size_t size, int, void* stream) {
  note(Function::cudaMemcpyAsync);
  return copy_on(stream, target, source, size);
}

PHANTOM_EXPORT int cudaMemcpyPeer(void* target, int, const void* source, int, std::size_t size) {
  note(Function::cudaMemcpyPeer);
  copy(target, source, size);
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemcpyPeerAsync(void* target, int, const void* source, int, std::size_t size, void* stream) {
  note(Function::cudaMemcpyPeerAsync);
  return copy_on(stream, target, source, size);
}

PHANTOM_EXPORT int cudaMemcpy2D(void* target, std::size_t target_pitch, const void* source, std::size_t source_pitch,
                                std::size_t width, std::size_t height, int) {
  note(Function::cudaMemcpy2D);
  return copy_rows(target, target_pitch, source, source_pitch, width, height);
}

PHANTOM_EXPORT int cudaMemcpy2DAsync(void* target, std::size_t target_pitch, const void* source,
                                     std::size_t source_pitch, std::size_t width, std::size_t height, int, void*) {
  note(Function::cudaMemcpy2DAsync);
  return copy_rows(target, target_pitch, source, source_pitch, width, height);
}

PHANTOM_EXPORT int cudaMemset(void* address, int value, std::size_t size) {
  note(Function::cudaMemset);
  return clear(address, value, size);
}

PHANTOM_EXPORT int cudaMemsetAsync(void* address, int value, std::size_t size, void* stream) {
  note(Function::cudaMemsetAsync);
  if (const auto capture = capture_of(stream)) {
    capture->graph->nodes.fetch_add(1);
  } else {
    issued(stream);
  }
  return clear(address, value, size);
}

// Variables of a code object have an address, which is kept, and no storage: they read as zeros.
PHANTOM_EXPORT int cudaGetSymbolAddress(void** address, const void* symbol) {
  note(Function::cudaGetSymbolAddress);
  static std::mutex mutex;
  static auto* addresses = new std::map<std::pair<const void*, int>, void*>();
  const std::lock_guard lock(mutex);
  void*& known = (*addresses)[{symbol, current_device()}];
  if (known == nullptr) {
    const int error = reserve_addresses(current_device(), kPageBytes, kPageBytes, &known);
    if (error != kSuccess) return fail(error);
  }
  *address = known;
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemcpyFromSymbol(void* target, const void*, std::size_t size, std::size_t, int) {
  note(Function::cudaMemcpyFromSymbol);
  std::memset(target, 0, size);
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemcpyFromSymbolAsync(void* target, const void*, std::size_t size, std::size_t, int, void*) {
  note(Function::cudaMemcpyFromSymbolAsync);
  std::memset(target, 0, size);
  return kSuccess;
}
