// The ordered requests of a replay, borrowed columns.
#pragma once

#include <cstdint>
#include <span>

#include "base/units.hpp"

namespace xmem::simulation {

struct Requests {
  std::span<const std::uint8_t> kind;    // sequence::RequestKind
  std::span<const std::int32_t> block;   // index into the block columns, or number of a private pool
  std::span<const Bytes> size_bytes;     // of each block
  std::span<const std::int64_t> stream;  // of each block
};

// Throws ConfigError when the columns of the requests, or those of the blocks, differ in length.
void require_equal_lengths(const Requests& requests);

}  // namespace xmem::simulation
