// Kernels: registered by the libraries that hold them, launched into nothing. What callers ask about them sizes their
// temporaries and grids (CUB, some of ATen), so the answers follow the described device and the images that were
// compiled: CUB tunes by the architecture that is named here, and fails where that is none of those it was compiled
// for. What a kernel needs stands in its code. Of PTX, which only a driver compiles, 32 registers are assumed.
#include "runtime/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "abi/cuda_types.hpp"
#include "loading/redirection.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "runtime/launch_arguments.hpp"
#include "runtime/launch_log.hpp"
#include "runtime/multiprocessor.hpp"
#include "runtime/registered_kernels.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace xmem::phantom {
namespace {

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

// cudaFuncAttribute, CUfunction_attribute
constexpr int kMaxDynamicShared = 8;

// cudaLaunchAttribute and CUlaunchAttribute: an id in eight bytes, a value in 64.
constexpr std::size_t kLaunchAttributeBytes = 72;
constexpr std::size_t kLaunchAttributeValue = 8;
constexpr int kClusterDimension = 4;

}  // namespace

unsigned cluster_blocks_of(const void* attributes, unsigned count) {
  const auto* bytes = static_cast<const char*>(attributes);
  for (unsigned i = 0; bytes != nullptr && i < count; ++i, bytes += kLaunchAttributeBytes) {
    int id = 0;
    std::memcpy(&id, bytes, sizeof id);
    if (id != kClusterDimension) continue;
    Dim3 blocks{};
    std::memcpy(&blocks, bytes + kLaunchAttributeValue, sizeof blocks);
    return blocks.x * blocks.y * blocks.z;
  }
  return 0;
}

int launch_kernel(const void* handle, const LaunchShape& shape, void* stream, void** arguments) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  ensure_context(current_device());
  if (!versions_of_registered(handle, device->capability()).runs()) return kNoImageForDevice;
  switch (beyond_limits(*device, shape.grid, shape.block, shape.dynamic_shared_bytes)) {
    case BeyondLimits::kShape:
      return kInvalidConfiguration;
    case BeyondLimits::kSharedMemory:
      return kInvalidValue;
    case BeyondLimits::kNone:
      break;
  }
  look_at_arguments(handle, arguments);
  launched(stream);
  if (logs_launches()) log_kernel(handle, shape, stream, device->capability());
  return kSuccess;
}

int launch_by_driver(const void* handle, const LaunchShape& shape, void* stream, void** arguments) {
  if (handle == nullptr) return kInvalidHandle;
  const int error = launch_kernel(handle, shape, stream, arguments);
  return error != kInvalidConfiguration ? error : kInvalidValue;
}

const void* keep_kernel(Kernel kernel) {
  auto* handle = new char();  // an address that nothing else has, also not a registered symbol
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  kept.by_handle[handle] = std::move(kernel);
  return handle;
}

void drop_kernel(const void* handle) {
  forget_in_log(handle);
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  if (kept.by_handle.erase(handle) == 1) delete static_cast<const char*>(handle);
}

Kernel loaded_kernel(const void* handle) {
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  return found != kept.by_handle.end() ? found->second : Kernel{};
}

Kernel kernel_of(const void* handle, int capability) {
  Kernel kernel = loaded_kernel(handle);
  if (!kernel.name.empty()) return kernel;
  RegisteredKernel registered = registered_kernel(handle, capability);
  kernel.name = std::move(registered.name);
  kernel.known = registered.known;
  if (kernel.known) kernel.code = registered.code;
  kernel.most_dynamic_shared_bytes = registered.most_dynamic_shared_bytes;
  return kernel;
}

const char* kernel_name(const void* handle) {
  {
    LoadedKernels& kept = loaded_kernels();
    const std::lock_guard lock(kept.mutex);
    const auto found = kept.by_handle.find(handle);
    if (found != kept.by_handle.end()) return found->second.name.c_str();
  }
  return name_of_registered(handle);
}

int allow_dynamic_shared(const void* handle, int bytes) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  const int most = device->attribute(kMaxSharedMemoryPerBlockOptin);
  if (bytes < 0 || bytes + kernel_of(handle, device->capability()).code.static_shared_bytes > most) {
    return kInvalidValue;
  }
  LoadedKernels& kept = loaded_kernels();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  if (found != kept.by_handle.end())
    found->second.most_dynamic_shared_bytes = bytes;
  else
    allow_registered_dynamic_shared(handle, bytes);
  return kSuccess;
}

int occupancy(int* blocks, const void* kernel, int block_size, std::size_t dynamic_bytes) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  if (block_size <= 0) return kInvalidValue;
  *blocks = resident_blocks(*device, kernel_of(kernel, device->capability()).code, block_size, dynamic_bytes);
  return kSuccess;
}

int describe_function(FuncAttributes* attributes, const void* handle) {
  const Device* device = device_here();
  if (device == nullptr) return kNoDevice;
  const int capability = device->capability();
  const Kernel kernel = kernel_of(handle, capability);
  const CodeVersions versions = kernel.versions.runs() ? kernel.versions : versions_of_registered(handle, capability);
  if (!versions.runs()) return kNoImageForDevice;
  const KernelCode& code = kernel.code;
  *attributes = {};
  attributes->shared_size_bytes = static_cast<std::size_t>(code.static_shared_bytes);
  attributes->const_size_bytes = static_cast<std::size_t>(code.constant_bytes);
  attributes->local_size_bytes = static_cast<std::size_t>(code.local_bytes);
  attributes->max_threads_per_block = most_threads(*device, code);
  attributes->num_regs = code.registers;
  attributes->ptx_version = versions.ptx;
  attributes->binary_version = versions.binary;
  attributes->max_dynamic_shared_size_bytes =
      kernel.most_dynamic_shared_bytes >= 0
          ? kernel.most_dynamic_shared_bytes
          : std::max(device->attribute(kMaxSharedMemoryPerBlock) - code.static_shared_bytes, 0);
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

PHANTOM_EXPORT int cudaLaunchKernel(const void* function, Dim3 grid, Dim3 block, void** arguments,
                                    std::size_t shared_bytes, void* stream) {
  note(Function::cudaLaunchKernel);
  return fail(launch_kernel(function, {grid, block, static_cast<unsigned>(shared_bytes), 0}, stream, arguments));
}

// CUDA 13's form of the same, called by code that nvcc generates.
PHANTOM_EXPORT int __cudaLaunchKernel(void* function, Dim3 grid, Dim3 block, void** arguments, std::size_t shared_bytes,
                                      void* stream) {
  note(Function::__cudaLaunchKernel);
  return fail(launch_kernel(function, {grid, block, static_cast<unsigned>(shared_bytes), 0}, stream, arguments));
}

PHANTOM_EXPORT int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** arguments) {
  note(Function::cudaLaunchKernelExC);
  const LaunchShape shape{config->grid, config->block, static_cast<unsigned>(config->dynamic_shared_bytes),
                          cluster_blocks_of(config->attributes, config->attribute_count)};
  return fail(launch_kernel(function, shape, config->stream, arguments));
}

PHANTOM_EXPORT int cudaLaunchCooperativeKernel(const void* function, Dim3 grid, Dim3 block, void** arguments,
                                               std::size_t shared_bytes, void* stream) {
  note(Function::cudaLaunchCooperativeKernel);
  return fail(launch_kernel(function, {grid, block, static_cast<unsigned>(shared_bytes), 0}, stream, arguments));
}

PHANTOM_EXPORT RegisteredBinary* __cudaRegisterFatBinary(const void* wrapper) {
  note(Function::__cudaRegisterFatBinary);
  redirect_loaded_libraries();  // this is called as a library is loaded, after those that it needs
  return register_binary(wrapper);
}

PHANTOM_EXPORT void __cudaRegisterFatBinaryEnd(RegisteredBinary*) {
  note(Function::__cudaRegisterFatBinaryEnd);
}
PHANTOM_EXPORT void __cudaUnregisterFatBinary(RegisteredBinary* binary) {
  unregister_binary(binary);
}
PHANTOM_EXPORT void __cudaRegisterFunction(RegisteredBinary* binary, const void* host_function, char*,
                                           const char* name) {
  register_kernel(binary, host_function, name);
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

PHANTOM_EXPORT int cudaFuncSetAttribute(const void* function, int attribute, int value) {
  note(Function::cudaFuncSetAttribute);
  return fail(attribute == kMaxDynamicShared ? allow_dynamic_shared(function, value) : kSuccess);
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

PHANTOM_EXPORT int cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function, int blocks,
                                                             int block_size) {
  note(Function::cudaOccupancyAvailableDynamicSMemPerBlock);
  const Device* device = device_here();
  if (device == nullptr) return fail(kNoDevice);
  if (bytes == nullptr || blocks <= 0 || block_size <= 0) return fail(kInvalidValue);
  const KernelCode code = kernel_of(function, device->capability()).code;
  if (resident_blocks(*device, code, block_size, 0) < blocks) return fail(kInvalidValue);
  *bytes = static_cast<std::size_t>(dynamic_shared_bytes_of(*device, code, blocks));
  return kSuccess;
}
