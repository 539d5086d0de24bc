// Pinned and managed memory: plain host memory that remembers what it is. Large blocks are mapped, so that pages nobody
// touches cost nothing.
#pragma once

#include <cstddef>

#include "abi/cuda_types.hpp"

namespace xmem::phantom {

struct HostBlock {
  MemoryType type;  // kTypeHost or kTypeManaged
  int device;       // current when it was made
  void* base;
  std::size_t size;
};

int allocate_host(std::size_t size, MemoryType type, void** address);
int register_host(void* address, std::size_t size);
// False when the address is not the beginning of such a block.
bool release_host(void* address);
bool unregister_host(void* address);

// The block that an address lies in: false when there is none.
bool host_block_of(const void* address, HostBlock* block);

}  // namespace xmem::phantom
