// The memory of the described devices: bookkeeping of addresses and pages, no bytes.
//
// An allocation takes whole pages and fails when the processes of this run, their contexts included, would hold more
// than the device has. PyTorch asks for 2 MiB at least, so that the driver's packing of small allocations does not
// matter.
#pragma once

#include <cstdint>

#include "abi/cuda_types.hpp"
#include "machine/ledger.hpp"

namespace xmem::phantom {

// cudaMalloc and cudaFree. A free of an unknown address is kInvalidValue.
int allocate(int device, std::uint64_t size, void** address, Use use = Use::kProgram);
int release(void* address);

// Addresses without memory, and memory without addresses: the driver's virtual memory calls.
int reserve_addresses(int device, std::uint64_t size, std::uint64_t alignment, void** address);
int release_addresses(void* address, std::uint64_t size);
int take_pages(int device, std::uint64_t size, Use use = Use::kProgram);
void give_pages(int device, std::uint64_t size, Use use = Use::kProgram);

// The allocation that an address lies in: false when there is none.
bool allocation_of(const void* address, std::uint64_t* base, std::uint64_t* size);

// What cudaMemGetInfo says: the memory that no process of this run holds.
std::int64_t free_bytes(int device);

}  // namespace xmem::phantom
