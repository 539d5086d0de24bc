// The state of PyTorch's allocator: segments, the free set of every stream and pool, counters and the log of events.
//
// What both ways of getting memory share, whole segments (caching_allocator) and expandable ones
// (expandable_segments): putting a block into the free set, and joining it with its neighbours.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "allocators/device_reference.hpp"
#include "allocators/event_log.hpp"
#include "allocators/free_blocks.hpp"
#include "allocators/options.hpp"
#include "allocators/segment.hpp"
#include "allocators/statistics.hpp"

namespace xmem::allocators {

// Memory is never shared between streams nor between pools: each pair has its own free blocks.
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

  // The index of a stream, in order of first use.
  std::int32_t stream_index(StreamHandle stream) {
    if (stream == last_stream_) return last_stream_index_;
    return look_up_stream(stream);
  }
  // Stream indices in ascending order of the handle, the order in which PyTorch's free set holds them.
  const std::vector<std::int32_t>& streams_in_order() const { return streams_in_order_; }
  StreamHandle stream_handle(std::int32_t index) const { return handles_[static_cast<std::size_t>(index)]; }

  StreamPool& home(std::int32_t stream_index, Pool pool) {
    return stream_pools_[static_cast<std::size_t>(stream_index)][static_cast<std::size_t>(pool)];
  }
  StreamPool& home(const Block& block) { return home(block.stream_index, block.pool); }
  const StreamPool& home(std::int32_t stream_index, Pool pool) const {
    return stream_pools_[static_cast<std::size_t>(stream_index)][static_cast<std::size_t>(pool)];
  }

  FreeKey key_of(const Block& block) const;
  void insert_free(BlockHandle block);  // into the free set, as of now
  void erase_free(BlockHandle block);
  void insert_unmapped(BlockHandle block);
  void erase_unmapped(BlockHandle block);

  // Joins the block, itself in no set, with neighbours in its own state; the previous one first.
  Joined join_neighbours(BlockHandle block);

  void add_reserved(Pool pool, Bytes size);
  void remove_reserved(Pool pool, Bytes size);
  void log(Action action, const Block& block, Bytes size) {
    events.append(action, block.address, size, stream_handle(block.stream_index));
  }

  const AllocatorOptions& options() const { return options_; }
  DeviceReference& device() { return device_; }
  const DeviceReference& device() const { return device_; }

  SegmentTable table;
  Statistics statistics;
  EventLog events;
  std::array<std::int64_t, 2> searches{};  // of each pool, the clock of garbage collection; runs only with a limit

 private:
  std::int32_t look_up_stream(StreamHandle stream);

  AllocatorOptions options_;
  DeviceReference device_;
  std::vector<std::array<StreamPool, 2>> stream_pools_;
  std::vector<StreamHandle> handles_;
  std::vector<std::int32_t> streams_in_order_;
  StreamHandle last_stream_ = 0;
  std::int32_t last_stream_index_ = look_up_stream(0);
};

}  // namespace xmem::allocators
