// Kernels that come with a library: its start-up code names the fat binary and, one by one, the host functions that
// stand for its kernels. torch has tens of thousands of them and launches a few dozen, so that nothing but addresses is
// kept. The headers of a fat binary are read when the first of its kernels is launched, the code when somebody asks
// what one of its kernels needs; of that, what it says of its kernels is kept, and the code itself is not.
#pragma once

#include <string>

#include "code/fat_binary.hpp"
#include "code/kernel_code.hpp"

namespace xmem::phantom {

struct RegisteredBinary;

RegisteredBinary* register_binary(const void* wrapper);
void register_kernel(RegisteredBinary* binary, const void* host_function, const char* name);

// The library is unloaded: its fat binary may be gone from memory.
void unregister_binary(RegisteredBinary* binary);

// What would run when the kernel of a host function is launched on a device of this architecture. Of other addresses,
// and of fat binaries that cannot be read, nothing is known: they are taken as compiled for the device.
CodeVersions versions_of_registered(const void* host_function, int capability);

struct RegisteredKernel {
  std::string name;    // empty for an address that was not registered
  bool known = false;  // whether `code` was found in the image that runs on the architecture
  KernelCode code;
  int most_dynamic_shared_bytes = -1;  // that a caller allowed
};
RegisteredKernel registered_kernel(const void* host_function, int capability);
const char* name_of_registered(const void* host_function);  // null for other addresses

// Keeps what a caller allows a registered kernel.
void allow_registered_dynamic_shared(const void* host_function, int bytes);

// Whether a library of PyTorch registered it.
bool is_of_torch(const void* host_function);

}  // namespace xmem::phantom
