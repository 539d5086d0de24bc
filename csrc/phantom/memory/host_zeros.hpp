// Zeros for the host: what most of the device reads as.
#pragma once

#include <cstddef>

namespace xmem::phantom {

// Makes `size` bytes of the host read as zeros. Of a large range of private anonymous memory (what malloc and
// cudaMallocHost give) the pages are given back to the system, which brings zeros when they are next read or written:
// untouched ones stay untouched, so that checkpoints and offloaded weights of any size cost no memory. Anything else is
// written.
void write_zeros(void* bytes, std::size_t size);

}  // namespace xmem::phantom
