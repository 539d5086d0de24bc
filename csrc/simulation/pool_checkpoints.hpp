// Checkpoints of private pools, which the graph trees of torch.compile take and go back to.
//
// A checkpoint says how the segments of a pool were cut, and which block of the replay lived in which piece. Going back
// (setCheckpointPoolState of c10/cuda/CUDACachingAllocator.cpp, since torch 2.1) allocates every piece of a segment,
// then frees those that were free. The blocks of the replay that stand for the pieces are asked for before; what nobody
// asked for is freed at once.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "allocators/caching/caching_allocator.hpp"

namespace xmem::simulation {

class PoolCheckpoints {
 public:
  // Keeps the pool as it is, as the next checkpoint from 0. `handles`: of each block, below 0 where it does not live.
  void keep(allocators::MempoolId pool, const std::vector<std::int32_t>& handles,
            const allocators::CachingAllocator& allocator);

  // Puts segments of the pool of a checkpoint back, from which nothing lives any longer: those that hold the places of
  // the awaited blocks, or all that were not put back since the last time that all were. Writes the handles of awaited
  // blocks that found their places. Throws ConfigError for a checkpoint that was not kept.
  void restore(std::int32_t number, bool all, std::span<const std::size_t> awaited,
               std::span<const std::int32_t> restores, std::span<const Bytes> size_bytes,
               std::vector<std::int32_t>& handles, allocators::CachingAllocator& allocator);

 private:
  struct Place {
    std::size_t segment;
    std::size_t piece;
  };
  struct Checkpoint {
    std::vector<allocators::SegmentCheckpoint> segments;
    std::unordered_map<std::size_t, Place> place_of;  // of each block; looked up, never listed
  };

  static std::size_t free_segment(const Checkpoint& checkpoint, const std::vector<bool>& restored, Bytes size);

  std::vector<Checkpoint> kept_;
  std::vector<bool> restored_;  // segments of the checkpoint that is gone back to
};

}  // namespace xmem::simulation
