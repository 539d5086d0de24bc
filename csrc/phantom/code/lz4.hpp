// LZ4 blocks (lz4_Block_format.md of the LZ4 project): how fatbinary compresses code until CUDA 12.
#pragma once

#include <cstddef>

namespace xmem::phantom {

// Whether `packed` is a block that unpacks to exactly `size` bytes, which are then in `unpacked`.
bool unpack_lz4(const void* packed, std::size_t packed_size, void* unpacked, std::size_t size);

}  // namespace xmem::phantom
