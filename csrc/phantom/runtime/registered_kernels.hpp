// Kernels that come with a library: its start-up code names the fat binary and, one by one, the host functions that
// stand for its kernels. torch has tens of thousands of them and launches a few dozen, so that nothing but the pair of
// addresses is kept, and a fat binary is read when the first of its kernels is asked for.
#pragma once

#include "runtime/fat_binary.hpp"

namespace xmem::phantom {

struct RegisteredBinary;

RegisteredBinary* register_binary(const void* wrapper);
void register_kernel(RegisteredBinary* binary, const void* host_function);

// The library is unloaded: its fat binary may be gone from memory.
void unregister_binary(RegisteredBinary* binary);

// What would run when the kernel of a host function is launched on a device of this architecture. Of other addresses,
// and of fat binaries that cannot be read, nothing is known: they are taken as compiled for the device.
CodeVersions versions_of_registered(const void* host_function, int capability);

// Whether a library of PyTorch registered it.
bool is_of_torch(const void* host_function);

}  // namespace xmem::phantom
