// PyTorch's native CUDA caching allocator: same segments, same blocks, same counters, same failures, without a GPU.
//
// Mirrors DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, 2.5 to 2.14; what differs between versions is in
// the options. docs/allocator_model.md says what is modelled. Out of scope: private pools (CUDA graphs, MemPool),
// cudaMallocAsync, changes of options at run time. When a block that another stream used becomes free depends on GPU
// timing: the caller says it (complete), else it waits for the next full flush.
//
// Cost: a request is one search, at most three insertions or removals in a flat ordered set, and counters.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "allocators/allocator_state.hpp"
#include "allocators/concepts.hpp"
#include "allocators/expandable_segments.hpp"
#include "allocators/heap.hpp"

namespace xmem::allocators {

// Why the last allocate() failed.
struct OutOfMemory {
  Bytes rounded_size = 0;
  Bytes device_free_bytes = 0;
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

  // `request` bytes, above 0. None when out of memory at both levels: caches are flushed then, live blocks untouched.
  BlockHandle allocate(Bytes request, StreamHandle stream);
  void free(BlockHandle block);
  // The block is used on `stream` too: its free will wait for complete(), synchronize() or a full flush.
  void record_stream(BlockHandle block, StreamHandle stream);
  void record_stream(BlockHandle block);  // on any stream but its own
  // The other streams are done with a block that waits; it becomes free.
  void complete(BlockHandle block);
  void synchronize();  // they are done with all that wait
  void empty_cache();

  Bytes allocated_bytes() const { return heap_.statistics.allocated_bytes.all.current; }
  Bytes active_bytes() const { return heap_.statistics.active_bytes.all.current; }
  Bytes reserved_bytes() const { return heap_.statistics.reserved_bytes.all.current; }
  Bytes requested_bytes() const { return heap_.statistics.requested_bytes.all.current; }
  const Statistics& statistics() const { return heap_.statistics; }
  const EventLog& events() const { return heap_.events; }
  const Block& block(BlockHandle block) const { return heap_.table[block]; }
  StreamHandle stream_of(BlockHandle block) const { return heap_.stream_handle(heap_.table[block].stream_index); }
  // Whether a cached block would serve the request, so that the device would not be asked.
  bool is_cached(Bytes request, StreamHandle stream);
  const OutOfMemory& last_out_of_memory() const { return last_out_of_memory_; }
  AllocatorState state() const;

  // Throws std::logic_error naming the first broken rule. Walks everything: for tests and debug builds.
  void check_invariants() const;

 private:
  FreeBlocks::Position best_fit(const FreeBlocks& free, Bytes size) const;  // free.end() when none may serve
  BlockHandle find_free(std::int32_t stream_index, Pool pool, Bytes size);
  BlockHandle obtain(std::int32_t stream_index, Pool pool, Bytes size);
  BlockHandle device_allocate(std::int32_t stream_index, Pool pool, Bytes size);
  BlockHandle take(BlockHandle found, Bytes request, Bytes size);
  void complete_free(BlockHandle block);
  void restore_block(BlockHandle block, Bytes requested);

  void collect_garbage();
  bool release_available(std::int32_t stream_index, Pool pool, Bytes size);
  void release_cached();
  void release_blocks(Pool pool);
  void release_segment(BlockHandle block);  // in no set, and alone in its segment

  bool collects_garbage() const { return limit_.has_value() && options_.gc_threshold > 0; }
  bool exceeds_limit(Bytes segment) const { return limit_.has_value() && reserved_bytes() + segment > *limit_; }

  AllocatorOptions options_;
  Heap heap_;
  ExpandableSegments expandable_;
  std::optional<Bytes> limit_;
  std::vector<BlockHandle> pending_;  // frees that wait for other streams, oldest first
  OutOfMemory last_out_of_memory_;
};
static_assert(FrameworkAllocator<CachingAllocator>);

}  // namespace xmem::allocators
