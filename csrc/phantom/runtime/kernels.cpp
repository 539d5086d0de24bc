// Kernels: registered by the libraries that hold them, launched into nothing. What callers ask about them sizes their
// temporaries (CUB, some of ATen), so the answers follow the described device and the images that were compiled: CUB
// tunes by the architecture that is named here, and fails where that is none of those it was compiled for. Registers
// and shared memory of kernels that come with a library are not read from its code objects: 32 registers and no static
// shared memory are assumed.
#include "runtime/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "runtime/launch_arguments.hpp"
#include "runtime/registered_kernels.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace xmem::phantom {
namespace {

constexpr int kRegisterGranularity = 256;  // a warp's registers are allocated in such units

struct PushedLaunch {
  Dim3 grid;
  Dim3 block;
  std::size_t shared_bytes;
  void* stream;
};
thread_local PushedLaunch pushed;

const Device* device_here() {
  return machine().has(current_device()) ? &machine().device(current_device()) : nullptr;
}

struct LoadedKernels {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> by_handle;
};

LoadedKernels& loaded_kernels() {
  static auto* kept = new LoadedKernels();  // never destroyed: libraries are unloaded from exit handlers
  return *kept;
}

// As many blocks as threads, blocks, registers and shared memory of a multiprocessor allow.
int blocks_per_multiprocessor(const Device& device, const Kernel& kernel, int block_size, std::size_t dynamic_bytes) {
  if (block_size <= 0 || block_size > device.attribute(kMaxThreadsPerBlock)) return 0;
  const int warps = (block_size + 31) / 32;
  const int warp_registers =
      (kernel.registers * 32 + kRegisterGranularity - 1) / kRegisterGranularity * kRegisterGranularity;
  int blocks = std::min(device.attribute(kMaxThreadsPerMultiProcessor) / (32 * warps),
                        device.attribute(kMaxBlocksPerMultiprocessor));
  blocks = std::min(blocks, device.attribute(kMaxRegistersPerMultiprocessor) / std::max(warps * warp_registers, 1));
  const auto shared_bytes = static_cast<std::int64_t>(dynamic_bytes) + kernel.static_shared_bytes;
  if (shared_bytes > device.attribute(kMaxSharedMemoryPerBlockOptin)) return 0;
  const std::int64_t per_block = shared_bytes + device.attribute(kReservedSharedMemoryPerBlock);
  if (per_block > 0) {
    blocks = std::min(blocks, static_cast<int>(device.attribute(kMaxSharedMemoryPerMultiprocessor) / per_block));
  }
  return std::max(blocks, 0);
}

}  // namespace

int launch_kernel(const void* handle, void* stream, void** arguments) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  ensure_context(current_device());
  if (!versions_of_registered(handle, device->capability()).runs()) return kNoImageForDevice;
  look_at_arguments(handle, arguments);
  launched(stream);
  return kSuccess;
}

const void* keep_kernel(Kernel kernel) {
  auto* handle = new char();  // an address that nothing else has, also not a registered symbol
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  kept.by_handle[handle] = std::move(kernel);
  return handle;
}

void drop_kernel(const void* handle) {
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  if (kept.by_handle.erase(handle) == 1) delete static_cast<const char*>(handle);
}

Kernel kernel_of(const void* handle) {
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  return found != kept.by_handle.end() ? found->second : Kernel{};
}

const char* kernel_name(const void* handle) {
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  return found != kept.by_handle.end() ? found->second.name.c_str() : nullptr;
}

void allow_dynamic_shared(const void* handle, int bytes) {
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  if (found != kept.by_handle.end()) found->second.most_dynamic_shared_bytes = bytes;
}

int occupancy(int* blocks, const void* kernel, int block_size, std::size_t dynamic_bytes) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  *blocks = blocks_per_multiprocessor(*device, kernel_of(kernel), block_size, dynamic_bytes);
  return kSuccess;
}

int describe_function(FuncAttributes* attributes, const void* handle) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  const Kernel kernel = kernel_of(handle);
  const int capability = device->capability();
  const CodeVersions versions = kernel.versions.runs() ? kernel.versions : versions_of_registered(handle, capability);
  if (!versions.runs()) return kNoImageForDevice;
  *attributes = {};
  attributes->shared_size_bytes = static_cast<std::size_t>(kernel.static_shared_bytes);
  attributes->local_size_bytes = static_cast<std::size_t>(kernel.local_bytes);
  attributes->max_threads_per_block =
      kernel.most_threads > 0 ? kernel.most_threads : device->attribute(kMaxThreadsPerBlock);
  attributes->num_regs = kernel.registers;
  attributes->ptx_version = versions.ptx;
  attributes->binary_version = versions.binary;
  attributes->max_dynamic_shared_size_bytes =
      kernel.most_dynamic_shared_bytes >= 0
          ? kernel.most_dynamic_shared_bytes
          : std::max(device->attribute(kMaxSharedMemoryPerBlock) - kernel.static_shared_bytes, 0);
  attributes->preferred_shmem_carveout = -1;
  return kSuccess;
}

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

PHANTOM_EXPORT int cudaLaunchKernel(const void* function, Dim3, Dim3, void** arguments, std::size_t, void* stream) {
  note(Function::cudaLaunchKernel);
  return fail(launch_kernel(function, stream, arguments));
}

// CUDA 13's form of the same, called by code that nvcc generates.
PHANTOM_EXPORT int __cudaLaunchKernel(void* function, Dim3, Dim3, void** arguments, std::size_t, void* stream) {
  note(Function::__cudaLaunchKernel);
  return fail(launch_kernel(function, stream, arguments));
}

PHANTOM_EXPORT int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** arguments) {
  note(Function::cudaLaunchKernelExC);
  return fail(launch_kernel(function, config->stream, arguments));
}

PHANTOM_EXPORT int cudaLaunchCooperativeKernel(const void* function, Dim3, Dim3, void** arguments, std::size_t,
                                               void* stream) {
  note(Function::cudaLaunchCooperativeKernel);
  return fail(launch_kernel(function, stream, arguments));
}

PHANTOM_EXPORT RegisteredBinary* __cudaRegisterFatBinary(const void* wrapper) {
  note(Function::__cudaRegisterFatBinary);
  return register_binary(wrapper);
}

PHANTOM_EXPORT void __cudaRegisterFatBinaryEnd(RegisteredBinary*) {
  note(Function::__cudaRegisterFatBinaryEnd);
}
PHANTOM_EXPORT void __cudaUnregisterFatBinary(RegisteredBinary* binary) {
  unregister_binary(binary);
}
PHANTOM_EXPORT void __cudaRegisterFunction(RegisteredBinary* binary, const void* host_function) {
  register_kernel(binary, host_function);
}
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

PHANTOM_EXPORT int cudaFuncGetAttributes(FuncAttributes* attributes, const void* function) {
  note(Function::cudaFuncGetAttributes);
  return fail(describe_function(attributes, function));
}

PHANTOM_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                                 std::size_t shared_bytes) {
  note(Function::cudaOccupancyMaxActiveBlocksPerMultiprocessor);
  return fail(occupancy(blocks, function, block_size, shared_bytes));
}

PHANTOM_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                          int block_size, std::size_t shared_bytes,
                                                                          unsigned) {
  note(Function::cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  return fail(occupancy(blocks, function, block_size, shared_bytes));
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
