// PyTorch's native CUDA caching allocator: same segments, same blocks, same counters, same failures, without a GPU.
//
// Mirrors DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, 2.5 to 2.14; what differs between versions is in
// the options. docs/allocator_model.md says what is modelled. Out of scope: cudaMallocAsync, changes of options at run
// time. When a block that another stream used becomes free depends on GPU
// timing: the caller says it (complete), else it waits for the next full flush.
//
// Cost: a request is one search, at most three insertions or removals in a flat ordered set, and counters.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "allocators/caching/allocator_state.hpp"
#include "allocators/caching/expandable_segments.hpp"
#include "allocators/caching/heap.hpp"
#include "allocators/caching/private_pools.hpp"
#include "allocators/concepts.hpp"

namespace xmem::allocators {

// Why the last allocate() failed.
struct OutOfMemory {
  Bytes rounded_size = 0;
  Bytes device_free_bytes = 0;
};

// How one segment of a private pool is cut: PyTorch's SegmentState, part of a PrivatePoolState.
struct SegmentCheckpoint {
  struct Piece {
    Bytes size = 0;
    BlockHandle block;  // that lived in it; none where it was free
  };
  SegmentId segment;
  std::vector<Piece> pieces;  // in order of address; of an expandable segment those before its first unmapped byte
};

class CachingAllocator {
 public:
  // Throws ConfigError when an option has a value that PyTorch refuses. The device must outlive the allocator.
  CachingAllocator(const AllocatorOptions& options, DeviceReference device);
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Rebuilds a running allocator inside a fresh one, with counters as if everything had just been allocated. The device
  // is not asked: it must count these segments already. Returns the handle of each block of `state`; none when free.
  std::vector<BlockHandle> restore(const AllocatorState& state);

  // `request` bytes, above 0, of the pool whose scope is open. None when out of memory at both levels: caches are
  // flushed then except during a capture, live blocks untouched.
  BlockHandle allocate(Bytes request, StreamHandle stream) { return allocate(request, stream, mempools_.current()); }
  void free(BlockHandle block);
  // The block is used on `stream` too: its free will wait for complete(), process_events() or a full flush.
  void record_stream(BlockHandle block, StreamHandle stream);
  void record_stream(BlockHandle block);  // on any stream but its own
  // The other streams are done with a block that waits; it becomes free.
  void complete(BlockHandle block);
  // They are done with all that wait: what PyTorch finds at the next request. Frees wait on during a capture.
  void process_events() {
    const bool nothing_waits = pending_.empty() && deferred_.empty();
    if (!nothing_waits && !mempools_.is_capturing()) complete_all_frees();
  }
  // During a capture, only of private pools that nobody uses.
  void empty_cache();

  // Private pools; see private_pools.hpp for what is refused.
  void retain_pool(MempoolId pool) { mempools_.retain(pool); }
  void begin_pool(MempoolId pool) { mempools_.begin(pool, false); }
  void begin_capture(MempoolId pool) { mempools_.begin(pool, true); }
  void end_pool(MempoolId pool) { mempools_.end(pool); }
  void release_pool(MempoolId pool) { mempools_.release(pool); }
  void use_pool_on_oom(MempoolId pool) { mempools_.use_on_oom(pool); }
  void forbid_split_of_pool(MempoolId pool) { mempools_.forbid_split(pool); }
  // Gives the memory of one pool back, if nobody uses it. Throws ConfigError during a capture, where PyTorch fails.
  void empty_pool(MempoolId pool);

  // For graph trees (getCheckpointState, setCheckpointPoolState). The segments of a pool, by number.
  std::vector<SegmentCheckpoint> checkpoint_pool(MempoolId pool) const;
  // Allocates all pieces of a segment that is free as a whole, in order; those that were free are the caller's to free.
  // Nothing, and no handles, where the segment is gone or in use.
  std::vector<BlockHandle> restore_segment(const SegmentCheckpoint& checkpoint);

  // Of a program that says which pool serves: `request` bytes of this one, whatever scope is open.
  BlockHandle allocate_in(MempoolId pool, Bytes request, StreamHandle stream) {
    return allocate(request, stream, pool);
  }

  // For recordings, which say of each request which pool served it. `flushes`: whether a request that the device
  // refuses may flush the caches, as it may not in a capture.
  BlockHandle allocate_recorded(Bytes request, StreamHandle stream, MempoolId pool, bool flushes);
  void abandon_pool(MempoolId pool) { mempools_.abandon(pool); }  // nobody uses it any longer

  Bytes allocated_bytes() const { return heap_.statistics.allocated_bytes.all.current; }
  Bytes active_bytes() const { return heap_.statistics.active_bytes.all.current; }
  Bytes reserved_bytes() const { return heap_.statistics.reserved_bytes.all.current; }
  // Of the reserved bytes those of each private pool that ever held any.
  const std::map<MempoolId, PooledStat>& reserved_by_private_pools() const { return heap_.reserved_by_private_pools(); }
  Bytes requested_bytes() const { return heap_.statistics.requested_bytes.all.current; }
  const Statistics& statistics() const { return heap_.statistics; }
  const EventLog& events() const { return heap_.events; }
  const Block& block(BlockHandle block) const { return heap_.table[block]; }
  StreamHandle stream_of(BlockHandle block) const { return heap_.stream_handle(heap_.table[block].arena); }
  MempoolId mempool_of(BlockHandle block) const { return heap_.mempool(heap_.table[block].arena); }
  const std::vector<Segment>& segments() const { return heap_.table.segments(); }  // by SegmentId
  // Whether a cached block would serve the request, so that the device would not be asked.
  bool is_cached(Bytes request, StreamHandle stream, MempoolId pool);
  const OutOfMemory& last_out_of_memory() const { return last_out_of_memory_; }
  AllocatorState state() const;

  // Throws std::logic_error naming the first broken rule. Walks everything: for tests and debug builds.
  void check_invariants() const;

 private:
  FreeBlocks::Position best_fit(const FreeBlocks& free, Bytes size) const;  // free.end() when none may serve
  BlockHandle find_free(ArenaIndex arena, Pool pool, Bytes size);
  BlockHandle allocate(Bytes request, StreamHandle stream, MempoolId mempool);
  BlockHandle obtain(ArenaIndex arena, Pool pool, Bytes size);
  BlockHandle find_in_pools_for_oom(StreamHandle stream, Pool pool, Bytes size);
  BlockHandle device_allocate(ArenaIndex arena, Pool pool, Bytes size);
  BlockHandle take(BlockHandle found, Bytes request, Bytes size, bool split);
  void finish_free(BlockHandle waiting);
  void complete_free(BlockHandle block);
  void restore_block(BlockHandle block, Bytes requested);

  void collect_garbage();
  bool release_available(ArenaIndex arena, Pool pool, Bytes size);
  void complete_all_frees();
  void complete_deferred_frees();
  void release_cached();
  void release_freeable(MempoolId mempool);
  void release_blocks(MempoolId mempool, Pool pool);
  void release_segment(BlockHandle block);  // in no set, and alone in its segment

  bool flushes() const { return may_flush_ && !mempools_.is_capturing(); }
  bool may_split(const Block& block) const {
    return mempools_.all_may_split() || mempools_.may_split(heap_.mempool(block.arena));
  }
  bool collects_garbage() const { return limit_.has_value() && options_.gc_threshold > 0; }
  bool exceeds_limit(Bytes segment) const { return limit_.has_value() && reserved_bytes() + segment > *limit_; }

  AllocatorOptions options_;
  Heap heap_;
  ExpandableSegments expandable_;
  PrivatePools mempools_;
  std::optional<Bytes> limit_;
  std::vector<BlockHandle> pending_;   // frees that wait for other streams, oldest first
  std::vector<BlockHandle> deferred_;  // the same, of frees during a capture; not looked at until it ends
  bool may_flush_ = true;
  OutOfMemory last_out_of_memory_;
};
static_assert(FrameworkAllocator<CachingAllocator>);

}  // namespace xmem::allocators
