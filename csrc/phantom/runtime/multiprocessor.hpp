// How many blocks of a kernel a multiprocessor holds: the rules of the CUDA C++ Programming Guide ("Compute
// Capabilities") and of the calculator in the CUDA toolkit.
#pragma once

#include <cstddef>

#include "abi/cuda_types.hpp"
#include "code/kernel_code.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom {

// 0 where a block cannot be launched so.
int resident_blocks(const Device& device, const KernelCode& code, int block_size, std::size_t dynamic_bytes);

// Dynamic shared memory that so many blocks of a multiprocessor can have each.
int dynamic_shared_bytes_of(const Device& device, const KernelCode& code, int blocks);

// The largest block that can be launched, as its registers and its promise allow.
int most_threads(const Device& device, const KernelCode& code);

// The limits of the device that a launch is beyond.
enum class BeyondLimits { kNone, kShape, kSharedMemory };
BeyondLimits beyond_limits(const Device& device, const Dim3& grid, const Dim3& block, std::size_t dynamic_shared_bytes);

}  // namespace xmem::phantom
