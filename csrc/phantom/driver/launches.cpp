// Launches through the driver, and what it says of kernels.
#include <algorithm>
#include <cstddef>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "runtime/kernels.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

// CUfunction_attribute
enum FunctionAttribute : int {
  kThreadsPerBlock = 0,
  kStaticSharedBytes = 1,
  kConstantBytes = 2,
  kLocalBytes = 3,
  kRegisters = 4,
  kPtxVersion = 5,
  kBinaryVersion = 6,
  kCacheModeCa = 7,
  kDynamicSharedBytes = 8,
  kSharedCarveout = 9,
  kLastFunctionAttribute = 15,  // from 10 on: clusters
};

// CUlaunchConfig
struct DriverLaunchConfig {
  Dim3 grid;
  Dim3 block;
  unsigned dynamic_shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

int get_attribute(int* value, int attribute, const void* function) {
  if (value == nullptr || attribute < 0 || attribute > kLastFunctionAttribute) return kInvalidValue;
  FuncAttributes known{};
  if (const int error = describe_function(&known, function); error != kSuccess) return error;
  switch (attribute) {
    case kThreadsPerBlock:
      *value = known.max_threads_per_block;
      break;
    case kStaticSharedBytes:
      *value = static_cast<int>(known.shared_size_bytes);
      break;
    case kConstantBytes:
      *value = static_cast<int>(known.const_size_bytes);
      break;
    case kLocalBytes:
      *value = static_cast<int>(known.local_size_bytes);
      break;
    case kRegisters:
      *value = known.num_regs;
      break;
    case kPtxVersion:
      *value = known.ptx_version;
      break;
    case kBinaryVersion:
      *value = known.binary_version;
      break;
    case kDynamicSharedBytes:
      *value = known.max_dynamic_shared_size_bytes;
      break;
    case kSharedCarveout:
      *value = known.preferred_shmem_carveout;
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}

int set_attribute(const void* function, int attribute, int value) {
  if (attribute < 0 || attribute > kLastFunctionAttribute) return kInvalidValue;
  return attribute == kDynamicSharedBytes ? allow_dynamic_shared(function, value) : kSuccess;
}

using SharedBytesOfBlock = std::size_t (*)(int block_size);

// The block size that fills a multiprocessor best; the larger of equals.
int best_block_size(int* grid_size, int* block_size, const void* function, SharedBytesOfBlock shared_bytes_of,
                    std::size_t shared_bytes, int limit) {
  FuncAttributes known{};
  if (const int error = describe_function(&known, function); error != kSuccess) return error;
  const int most = limit > 0 ? std::min(limit, known.max_threads_per_block) : known.max_threads_per_block;
  int best = 0, best_blocks = 0;
  for (int size = most / 32 * 32; size > 0; size -= 32) {
    int blocks = 0;
    occupancy(&blocks, function, size, shared_bytes_of != nullptr ? shared_bytes_of(size) : shared_bytes);
    if (blocks * size <= best * best_blocks) continue;
    best = size;
    best_blocks = blocks;
  }
  *block_size = best;
  *grid_size = best_blocks * machine().device(current_device()).attribute(kMultiProcessorCount);
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cuLaunchKernel(const void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                  void* stream, void** arguments, void**) {
  note(Function::cuLaunchKernel);
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, 0};
  return launch_by_driver(function, shape, stream, arguments);
}

PHANTOM_EXPORT int cuLaunchCooperativeKernel(const void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                             unsigned block_x, unsigned block_y, unsigned block_z,
                                             unsigned shared_bytes, void* stream, void** arguments) {
  note(Function::cuLaunchCooperativeKernel);
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, 0};
  return launch_by_driver(function, shape, stream, arguments);
}

PHANTOM_EXPORT int cuLaunchKernelEx(const DriverLaunchConfig* config, const void* function, void** arguments, void**) {
  note(Function::cuLaunchKernelEx);
  if (config == nullptr) return kInvalidValue;
  const LaunchShape shape{config->grid, config->block, config->dynamic_shared_bytes,
                          cluster_blocks_of(config->attributes, config->attribute_count)};
  return launch_by_driver(function, shape, config->stream, arguments);
}

PHANTOM_EXPORT int cuFuncGetAttribute(int* value, int attribute, const void* function) {
  note(Function::cuFuncGetAttribute);
  return get_attribute(value, attribute, function);
}

PHANTOM_EXPORT int cuFuncSetAttribute(const void* function, int attribute, int value) {
  note(Function::cuFuncSetAttribute);
  return set_attribute(function, attribute, value);
}

PHANTOM_EXPORT int cuKernelGetAttribute(int* value, int attribute, const void* kernel, int) {
  note(Function::cuKernelGetAttribute);
  return get_attribute(value, attribute, kernel);
}

PHANTOM_EXPORT int cuKernelSetAttribute(int attribute, int value, const void* kernel, int) {
  note(Function::cuKernelSetAttribute);
  return set_attribute(kernel, attribute, value);
}

PHANTOM_EXPORT int cuFuncGetName(const char** name, const void* function) {
  note(Function::cuFuncGetName);
  *name = kernel_name(function);
  return *name != nullptr ? kSuccess : kInvalidHandle;
}

// A kernel is its own function, in every context.
PHANTOM_EXPORT int cuKernelGetFunction(const void** function, const void* kernel) {
  note(Function::cuKernelGetFunction);
  *function = kernel;
  return kSuccess;
}

PHANTOM_EXPORT int cuFuncIsLoaded(int* state, const void*) {
  note(Function::cuFuncIsLoaded);
  *state = 1;
  return kSuccess;
}

PHANTOM_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                               std::size_t shared_bytes) {
  note(Function::cuOccupancyMaxActiveBlocksPerMultiprocessor);
  return occupancy(blocks, function, block_size, shared_bytes);
}

PHANTOM_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                        int block_size, std::size_t shared_bytes,
                                                                        unsigned) {
  note(Function::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
  return occupancy(blocks, function, block_size, shared_bytes);
}

PHANTOM_EXPORT int cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, const void* function,
                                                    SharedBytesOfBlock shared_bytes_of, std::size_t shared_bytes,
                                                    int limit) {
  note(Function::cuOccupancyMaxPotentialBlockSize);
  return best_block_size(grid_size, block_size, function, shared_bytes_of, shared_bytes, limit);
}

PHANTOM_EXPORT int cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size, const void* function,
                                                             SharedBytesOfBlock shared_bytes_of,
                                                             std::size_t shared_bytes, int limit, unsigned) {
  note(Function::cuOccupancyMaxPotentialBlockSizeWithFlags);
  return best_block_size(grid_size, block_size, function, shared_bytes_of, shared_bytes, limit);
}
