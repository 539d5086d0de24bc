// What is known of kernels: the code says what they need, as far as it can be read; of others it is assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/cuda_types.hpp"
#include "code/fat_binary.hpp"
#include "code/kernel_code.hpp"

namespace xmem::phantom {

struct Kernel {
  std::string name;  // as the compiler mangled it
  // Whether `code` is what the image for this device says. Of PTX, which only a driver compiles, nothing is known.
  bool known = false;
  KernelCode code{32, 0, 0, 0, 0, 0};  // 32 registers are assumed
  int most_dynamic_shared_bytes = -1;  // set by the caller; -1: what the device allows unasked
  bool parameters_known = false;
  std::vector<Parameter> parameters;
  CodeVersions versions;  // of a kernel that was loaded at run time; none: as compiled for the device
};

// How a kernel is launched. A cluster of 0 blocks: the launch does not say.
struct LaunchShape {
  Dim3 grid;
  Dim3 block;
  unsigned dynamic_shared_bytes;
  unsigned cluster_blocks;
};

// The blocks of a cluster that a launch's attributes ask for, 0 for none (cudaLaunchAttribute, CUlaunchAttribute).
unsigned cluster_blocks_of(const void* attributes, unsigned count);

// Launches a kernel into nothing on a stream of the current device. An error where none of its images runs there, and
// where the launch is beyond the device's limits. An empty grid, an error on a GPU, is none here: it may come of a
// value that was not computed. The arguments are null where they are passed in another way.
int launch_kernel(const void* handle, const LaunchShape& shape, void* stream, void** arguments);

// The same with the driver's errors, which has none of its own for a launch beyond the limits.
int launch_by_driver(const void* handle, const LaunchShape& shape, void* stream, void** arguments);

// Gives a kernel a handle (a CUfunction, CUkernel or cudaKernel_t), and takes it back.
const void* keep_kernel(Kernel kernel);
void drop_kernel(const void* handle);

// The kernel of a handle that was loaded at run time; of any other address, what is assumed. Reads no code.
Kernel loaded_kernel(const void* handle);

// The same, for which the code of a registered kernel is read when it is first asked for. `capability` is that of the
// device.
Kernel kernel_of(const void* handle, int capability);

const char* kernel_name(const void* handle);  // null when it is not known
int allow_dynamic_shared(const void* handle, int bytes);

int describe_function(FuncAttributes* attributes, const void* handle);

// Blocks of a kernel that fit on a multiprocessor of the current device.
int occupancy(int* blocks, const void* kernel, int block_size, std::size_t dynamic_bytes);

}  // namespace xmem::phantom
