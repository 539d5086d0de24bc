// The ordered requests of a replay, borrowed columns.
#pragma once

#include <cstdint>
#include <span>

#include "base/units.hpp"

namespace xmem::simulation {

// Sizes that an allocation tries in turn, as PyTorch tries cuDNN's execution plans (Conv_v8.cpp): the first that the
// allocator has memory for is taken, and is what the next block of the same list tries first; where that fails, the
// whole list is tried from its beginning. A size of 0 asks for nothing and always serves. Each attempt is a request of
// its own: caches are flushed before it fails. Out of memory only when the last one fails.
struct Alternatives {
  std::span<const std::int32_t> list;   // of each block, -1 where it has one size; empty where no block has any
  std::span<const std::int64_t> begin;  // of each list in size_bytes, and the end of the last
  std::span<const Bytes> size_bytes;

  std::span<const Bytes> sizes_of(std::int32_t number) const {
    const auto l = static_cast<std::size_t>(number);
    return size_bytes.subspan(static_cast<std::size_t>(begin[l]), static_cast<std::size_t>(begin[l + 1] - begin[l]));
  }
};

// What a block may say in Requests::restores in place of the block whose memory it takes over.
inline constexpr std::int32_t kRestoresNothing = -1;   // an allocation like any other
inline constexpr std::int32_t kFreeAtCheckpoint = -2;  // memory that was free at the checkpoint

struct Requests {
  std::span<const std::uint8_t> kind;    // sequence::RequestKind
  std::span<const std::int32_t> block;   // index into the block columns, or number of a private pool or checkpoint
  std::span<const Bytes> size_bytes;     // of each block; the first to be tried where it has alternatives
  std::span<const std::int64_t> stream;  // of each block
  Alternatives alternatives{};
  // Of each block; empty where no block has any.
  std::span<const std::int32_t> mempool{};   // the pool that serves it, -1: that whose scope is open
  std::span<const std::int32_t> restores{};  // the block whose place in a checkpoint it takes
};

// Throws ConfigError when the columns of the requests, or those of the blocks, differ in length, or when a list of
// alternatives is missing, empty, or has a size that no block can have.
void require_consistent(const Requests& requests);

}  // namespace xmem::simulation
