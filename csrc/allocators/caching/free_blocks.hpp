// The free blocks of one pool and stream, ordered by size and then by rank (the tie-break of the PyTorch version).
//
// Every request searches here, so the order is kept flat: sorted chunks of at most 64 keys, found through an array of
// the last key of each chunk. Search, insert and erase cost two short binary searches and a move inside one chunk;
// nothing is allocated while the number of chunks does not grow.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "allocators/ids.hpp"
#include "base/units.hpp"

namespace xmem::allocators {

struct FreeKey {
  Bytes size = 0;
  std::int64_t rank = 0;  // unique among blocks of one size; lower is taken first

  friend constexpr auto operator<=>(FreeKey, FreeKey) = default;
};

class FreeBlocks {
 public:
  struct Position {
    std::uint32_t chunk = 0;
    std::uint32_t slot = 0;
    friend bool operator==(Position, Position) = default;
  };

  bool is_empty() const { return order_.empty(); }
  Position begin() const { return {}; }
  Position end() const { return {static_cast<std::uint32_t>(order_.size()), 0}; }
  Position next(Position at) const;
  Position previous(Position at) const;  // at is not begin()
  BlockHandle operator[](Position at) const { return chunk(at.chunk).block[at.slot]; }

  // The first key that is not below the given one; end() when there is none.
  Position lower_bound(FreeKey key) const;
  void insert(FreeKey key, BlockHandle block);
  void erase(Position at);
  void erase(FreeKey key) { erase(lower_bound(key)); }  // the key is present

 private:
  static constexpr std::uint32_t kChunkKeys = 64;
  struct Chunk {
    std::uint32_t count = 0;
    std::array<Bytes, kChunkKeys> size;
    std::array<std::int64_t, kChunkKeys> rank;
    std::array<BlockHandle, kChunkKeys> block;

    FreeKey last() const { return {size[count - 1], rank[count - 1]}; }
    std::uint32_t lower_bound(FreeKey key) const;
  };

  const Chunk& chunk(std::uint32_t index) const { return chunks_[order_[index]]; }
  Chunk& chunk(std::uint32_t index) { return chunks_[order_[index]]; }
  std::uint32_t chunk_of(FreeKey key) const;  // first chunk whose last key is not below; order_.size() if none
  std::uint32_t new_chunk();
  void split_chunk(std::uint32_t index);

  std::vector<Chunk> chunks_;          // storage, in no order
  std::vector<std::uint32_t> unused_;  // chunks to be used again
  std::vector<std::uint32_t> order_;   // chunks in ascending order of keys; none is empty
  std::vector<FreeKey> last_;          // last key of each chunk in that order
};

}  // namespace xmem::allocators
