// Kernels: registered by the libraries that hold them, launched into nothing. What callers ask about them sizes their
// temporaries (CUB, some of ATen), so the answers follow the described device; registers and shared memory are not read
// from the code objects: a kernel of 32 registers and no static shared memory is assumed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace xmem::phantom {
namespace {

constexpr int kAssumedRegisters = 32;
constexpr int kRegisterGranularity = 256;  // a warp's registers are allocated in such units

struct PushedLaunch {
  Dim3 grid;
  Dim3 block;
  std::size_t shared_bytes;
  void* stream;
};
thread_local PushedLaunch pushed;

int launch(void* stream) {
  if (!machine().has(current_device())) return fail(kNoDevice);
  ensure_context(current_device());
  launched(stream);
  return kSuccess;
}

const Device* device_here() {
  return machine().has(current_device()) ? &machine().device(current_device()) : nullptr;
}

// As many blocks as threads, blocks, registers and shared memory of a multiprocessor allow.
int blocks_per_multiprocessor(int block_size, std::size_t shared_bytes) {
  const Device* device = device_here();
  if (device == nullptr || block_size <= 0 || block_size > device->attribute(kMaxThreadsPerBlock)) return 0;
  const int warps = (block_size + 31) / 32;
  const int registers = warps * std::max(kAssumedRegisters * 32, kRegisterGranularity);
  int blocks = std::min(device->attribute(kMaxThreadsPerMultiProcessor) / (32 * warps),
                        device->attribute(kMaxBlocksPerMultiprocessor));
  blocks = std::min(blocks, device->attribute(kMaxRegistersPerMultiprocessor) / registers);
  const auto per_block = static_cast<std::int64_t>(shared_bytes) + device->attribute(kReservedSharedMemoryPerBlock);
  if (static_cast<std::int64_t>(shared_bytes) > device->attribute(kMaxSharedMemoryPerBlockOptin)) return 0;
  if (per_block > 0) {
    blocks = std::min(blocks, static_cast<int>(device->attribute(kMaxSharedMemoryPerMultiprocessor) / per_block));
  }
  return std::max(blocks, 0);
}

int occupancy(int* blocks, int block_size, std::size_t shared_bytes) {
  if (device_here() == nullptr) return fail(kNoDevice);
  *blocks = blocks_per_multiprocessor(block_size, shared_bytes);
  return kSuccess;
}

}  // namespace
}  // namespace xmem::phantom

PHANTOM_EXPORT unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, std::size_t shared_bytes, void* stream) {
  pushed = {grid, block, shared_bytes, stream};
  return 0;
}

PHANTOM_EXPORT int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, std::size_t* shared_bytes, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  std::memcpy(stream, &pushed.stream, sizeof pushed.stream);
  return kSuccess;
}

PHANTOM_EXPORT int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  note(Function::cudaLaunchKernel);
  return launch(stream);
}

// CUDA 13's form of the same, called by code that nvcc generates.
PHANTOM_EXPORT int __cudaLaunchKernel(void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  note(Function::__cudaLaunchKernel);
  return launch(stream);
}

PHANTOM_EXPORT int cudaLaunchKernelExC(const LaunchConfig* config, const void*, void**) {
  note(Function::cudaLaunchKernelExC);
  return launch(config->stream);
}

PHANTOM_EXPORT int cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, std::size_t, void* stream) {
  note(Function::cudaLaunchCooperativeKernel);
  return launch(stream);
}

PHANTOM_EXPORT void** __cudaRegisterFatBinary(void* binary) {
  note(Function::__cudaRegisterFatBinary);
  return new void*(binary);
}

PHANTOM_EXPORT void __cudaRegisterFatBinaryEnd(void**) {
  note(Function::__cudaRegisterFatBinaryEnd);
}
PHANTOM_EXPORT void __cudaUnregisterFatBinary(void** handle) {
  delete handle;
}
PHANTOM_EXPORT void __cudaRegisterFunction() {}
PHANTOM_EXPORT void __cudaRegisterVar() {}
PHANTOM_EXPORT void __cudaRegisterManagedVar() {}
PHANTOM_EXPORT void __cudaRegisterHostVar() {}
PHANTOM_EXPORT void __cudaRegisterUnifiedTable() {}
PHANTOM_EXPORT char __cudaInitModule(void**) {
  return 1;
}

PHANTOM_EXPORT int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return kSuccess;
}

PHANTOM_EXPORT int cudaGetKernel(void** kernel, const void* function) {
  note(Function::cudaGetKernel);
  *kernel = const_cast<void*>(function);
  return kSuccess;
}

PHANTOM_EXPORT int cudaGetFuncBySymbol(void** function, const void* symbol) {
  note(Function::cudaGetFuncBySymbol);
  *function = const_cast<void*>(symbol);
  return kSuccess;
}

PHANTOM_EXPORT int cudaFuncGetAttributes(FuncAttributes* attributes, const void*) {
  note(Function::cudaFuncGetAttributes);
  const Device* device = device_here();
  if (device == nullptr) return fail(kNoDevice);
  *attributes = {};
  attributes->max_threads_per_block = device->attribute(kMaxThreadsPerBlock);
  attributes->num_regs = kAssumedRegisters;
  attributes->ptx_version = device->capability();
  attributes->binary_version = device->capability();
  attributes->max_dynamic_shared_size_bytes = device->attribute(kMaxSharedMemoryPerBlock);
  attributes->preferred_shmem_carveout = -1;
  return kSuccess;
}

PHANTOM_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                                 std::size_t shared_bytes) {
  note(Function::cudaOccupancyMaxActiveBlocksPerMultiprocessor);
  return occupancy(blocks, block_size, shared_bytes);
}

PHANTOM_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int block_size,
                                                                          std::size_t shared_bytes, unsigned) {
  note(Function::cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  return occupancy(blocks, block_size, shared_bytes);
}

PHANTOM_EXPORT int cudaOccupancyMaxActiveClusters(int* clusters, const void*, const LaunchConfig*) {
  note(Function::cudaOccupancyMaxActiveClusters);
  const Device* device = device_here();
  if (device == nullptr) return fail(kNoDevice);
  *clusters = device->attribute(kMultiProcessorCount);
  return kSuccess;
}

PHANTOM_EXPORT int cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const LaunchConfig*) {
  note(Function::cudaOccupancyMaxPotentialClusterSize);
  *size = 8;  // the portable maximum of the programming guide
  return kSuccess;
}

PHANTOM_EXPORT int cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void*, int blocks, int) {
  note(Function::cudaOccupancyAvailableDynamicSMemPerBlock);
  const Device* device = device_here();
  if (device == nullptr || blocks <= 0) return fail(kInvalidValue);
  const int per_block =
      device->attribute(kMaxSharedMemoryPerMultiprocessor) / blocks - device->attribute(kReservedSharedMemoryPerBlock);
  *bytes = static_cast<std::size_t>(std::clamp(per_block, 0, device->attribute(kMaxSharedMemoryPerBlockOptin)));
  return kSuccess;
}
