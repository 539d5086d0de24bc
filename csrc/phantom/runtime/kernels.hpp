// What is known of kernels: those of modules loaded at run time are described by their code objects, others are
// assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/cuda_types.hpp"
#include "runtime/fat_binary.hpp"

namespace xmem::phantom {

// One of a kernel, by its place.
struct Parameter {
  std::uint32_t number;
  std::uint32_t bytes;
};

struct Kernel {
  std::string name;
  int registers = 32;  // of a thread
  int static_shared_bytes = 0;
  int local_bytes = 0;                 // of a thread: its stack, and what was spilled
  int most_threads = 0;                // of a block; 0: as many as the device allows
  int most_dynamic_shared_bytes = -1;  // set by the caller; -1: what the device allows unasked
  bool parameters_known = false;
  std::vector<Parameter> parameters;
  CodeVersions versions;  // of a kernel that was loaded at run time; none: as compiled for the device
};

// Launches a kernel into nothing on a stream of the current device; an error where none of its images runs there. The
// arguments are null where they are passed in another way.
int launch_kernel(const void* handle, void* stream, void** arguments);

// Gives a kernel a handle (a CUfunction, CUkernel or cudaKernel_t), and takes it back.
const void* keep_kernel(Kernel kernel);
void drop_kernel(const void* handle);

// The kernel of a handle; of a registered symbol, and of any other address, what is assumed.
Kernel kernel_of(const void* handle);
const char* kernel_name(const void* handle);  // null when it is not known
void allow_dynamic_shared(const void* handle, int bytes);

int describe_function(FuncAttributes* attributes, const void* handle);

// Blocks of a kernel that fit on a multiprocessor of the current device.
int occupancy(int* blocks, const void* kernel, int block_size, std::size_t dynamic_bytes);

}  // namespace xmem::phantom
