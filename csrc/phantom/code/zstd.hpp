// Zstandard frames (RFC 8878), without dictionaries: how fatbinary compresses code from CUDA 13 on.
#pragma once

#include <cstddef>

namespace xmem::phantom {

// Whether `packed` is one frame that unpacks to exactly `size` bytes, which are then in `unpacked`. A checksum is not
// verified.
bool unpack_zstd(const void* packed, std::size_t packed_size, void* unpacked, std::size_t size);

}  // namespace xmem::phantom
