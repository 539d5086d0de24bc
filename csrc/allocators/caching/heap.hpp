// The state of PyTorch's allocator: segments, the free set of every arena and pool, counters and the log of events.
//
// What both ways of getting memory share, whole segments (caching_allocator) and expandable ones
// (expandable_segments): putting a block into the free set, and joining it with its neighbours.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "allocators/caching/free_blocks.hpp"
#include "allocators/caching/segment.hpp"
#include "allocators/device_reference.hpp"
#include "allocators/event_log.hpp"
#include "allocators/options.hpp"
#include "allocators/statistics.hpp"

namespace xmem::allocators {

// Memory is never shared between arenas nor between pools: each pair has its own free blocks.
struct StreamPool {
  FreeBlocks free;
  std::vector<BlockHandle> unmapped;  // of expandable segments, ascending address; a handful
};

// Free memory that a joined block took over from its neighbours.
struct Joined {
  std::int64_t blocks = 0;
  Bytes bytes = 0;
};

class Heap {
 public:
  Heap(const AllocatorOptions& options, DeviceReference device) : options_(options), device_(device) {}

  // The arena of a stream in a mempool, in order of first use.
  ArenaIndex arena_of(StreamHandle stream, MempoolId mempool) {
    if (stream == last_stream_ && mempool == last_mempool_) return last_arena_;
    return look_up_arena(stream, mempool);
  }
  // Those of a mempool in ascending order of the stream, the order in which PyTorch's free set holds them.
  std::span<const ArenaIndex> arenas_of(MempoolId mempool) const;
  ArenaIndex arena_count() const { return static_cast<ArenaIndex>(keys_.size()); }
  StreamHandle stream_handle(ArenaIndex arena) const { return keys_[static_cast<std::size_t>(arena)].stream; }
  MempoolId mempool(ArenaIndex arena) const { return keys_[static_cast<std::size_t>(arena)].mempool; }

  StreamPool& home(ArenaIndex arena, Pool pool) {
    return stream_pools_[static_cast<std::size_t>(arena)][static_cast<std::size_t>(pool)];
  }
  StreamPool& home(const Block& block) { return home(block.arena, block.pool); }
  const StreamPool& home(ArenaIndex arena, Pool pool) const {
    return stream_pools_[static_cast<std::size_t>(arena)][static_cast<std::size_t>(pool)];
  }

  FreeKey key_of(const Block& block) const;
  void insert_free(BlockHandle block);  // into the free set, as of now
  void erase_free(BlockHandle block);
  void insert_unmapped(BlockHandle block);
  void erase_unmapped(BlockHandle block);

  // Joins the block, itself in no set, with neighbours in its own state; the previous one first.
  Joined join_neighbours(BlockHandle block);

  void add_reserved(ArenaIndex arena, Pool pool, Bytes size);
  void remove_reserved(ArenaIndex arena, Pool pool, Bytes size);
  // Of the reserved bytes those of each private pool that ever held any.
  const std::map<MempoolId, PooledStat>& reserved_by_private_pools() const { return private_reserved_; }
  Bytes reserved_by(MempoolId mempool) const;  // now
  void log(Action action, const Block& block, Bytes size) {
    events.append(action, block.address, size, stream_handle(block.arena), mempool(block.arena));
  }

  const AllocatorOptions& options() const { return options_; }
  DeviceReference& device() { return device_; }
  const DeviceReference& device() const { return device_; }

  SegmentTable table;
  Statistics statistics;
  EventLog events;
  std::int64_t searches = 0;  // of the large default pool, the clock of garbage collection; runs only with a limit

 private:
  struct ArenaKey {
    StreamHandle stream;
    MempoolId mempool;
  };
  ArenaIndex look_up_arena(StreamHandle stream, MempoolId mempool);

  AllocatorOptions options_;
  DeviceReference device_;
  std::vector<std::array<StreamPool, 2>> stream_pools_;
  std::vector<ArenaKey> keys_;  // of each arena
  std::map<MempoolId, std::vector<ArenaIndex>> arenas_;
  std::map<MempoolId, PooledStat> private_reserved_;
  StreamHandle last_stream_ = 0;
  MempoolId last_mempool_ = kDefaultMempool;
  ArenaIndex last_arena_ = look_up_arena(0, kDefaultMempool);
};

}  // namespace xmem::allocators
