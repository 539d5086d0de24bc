#include "allocators/caching/caching_allocator.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <stdexcept>
#include <string>

#include "allocators/caching/rounding.hpp"
#include "allocators/device_memory.hpp"
#include "base/error.hpp"

namespace xmem::allocators {
namespace {

void validate(const AllocatorOptions& options) {
  if (options.large_segment <= kMinLargeAlloc || options.large_segment > kMaxBlockBytes ||
      options.large_segment % kMinBlockSize != 0) {
    throw ConfigError("a large segment of " + std::to_string(options.large_segment) + " bytes is invalid",
                      "use more than 10 MiB, a multiple of 512 bytes");
  }
  if (options.expandable && options.large_segment % kSmallBuffer != 0) {
    throw ConfigError("expandable segments cannot have pages of " + std::to_string(options.large_segment) + " bytes",
                      "use a multiple of 2 MiB, the driver's page");
  }
  if (options.max_split < options.large_segment) {
    throw ConfigError("a maximum split size of " + std::to_string(options.max_split) + " bytes is too small",
                      "use at least the size of a large segment, " + std::to_string(options.large_segment) + " bytes");
  }
  if (options.max_non_split_rounding < 0 || options.max_non_split_rounding > kUnlimitedBytes) {
    throw ConfigError(
        "a rounding without split of " + std::to_string(options.max_non_split_rounding) + " bytes is out of range",
        "use between 0 and 2^60 bytes");
  }
  for (const std::int32_t divisions : options.roundup_divisions) {
    if (divisions < 0 || (divisions > 0 && !std::has_single_bit(static_cast<std::uint32_t>(divisions)))) {
      throw ConfigError(std::to_string(divisions) + " divisions between powers of two are invalid",
                        "use 0 or a power of two");
    }
  }
  if (!(options.gc_threshold >= 0 && options.gc_threshold < 1)) {
    throw ConfigError("a garbage collection threshold of " + std::to_string(options.gc_threshold) + " is out of range",
                      "use 0 (off) or a fraction between 0 and 1");
  }
  if (options.memory_fraction && !(*options.memory_fraction >= 0 && *options.memory_fraction <= 1)) {
    throw ConfigError("a memory fraction of " + std::to_string(*options.memory_fraction) + " is out of range",
                      "use a number between 0 and 1");
  }
}

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorOptions& options, DeviceReference device)
    : options_(options), heap_(options, device), expandable_(heap_), mempools_(options) {
  validate(options);
  if (options.memory_fraction) {
    limit_ = static_cast<Bytes>(*options.memory_fraction * static_cast<double>(device.total_bytes()));
  }
}

BlockHandle CachingAllocator::allocate(Bytes request, StreamHandle stream, MempoolId mempool) {
  assert(request > 0);
  const Bytes size = round_size(request, options_);
  const Pool pool = pool_of(size);
  const ArenaIndex arena = heap_.arena_of(stream, mempool);
  BlockHandle found = find_free(arena, pool, size);
  if (found.is_none()) found = obtain(arena, pool, size);
  if (found.is_none()) {
    last_out_of_memory_ = {size, heap_.device().free_bytes()};
    assert((check_invariants(), true));
    return found;
  }
  const Block& block = heap_.table[found];
  const bool split = may_split(block) && should_split(block.size, size, pool, options_);
  const BlockHandle taken = take(found, request, size, split);
  assert((check_invariants(), true));
  return taken;
}

BlockHandle CachingAllocator::allocate_recorded(Bytes request, StreamHandle stream, MempoolId pool, bool flushes) {
  mempools_.ensure(pool);
  may_flush_ = flushes;
  const BlockHandle block = allocate(request, stream, pool);
  may_flush_ = true;
  return block;
}

bool CachingAllocator::is_cached(Bytes request, StreamHandle stream, MempoolId pool) {
  const Bytes size = round_size(request, options_);
  const FreeBlocks& free = heap_.home(heap_.arena_of(stream, pool), pool_of(size)).free;
  return best_fit(free, size) != free.end();
}

// get_free_block, without taking it: the smallest block that is large enough. No larger one is tried when it may not
// serve, for none could.
FreeBlocks::Position CachingAllocator::best_fit(const FreeBlocks& free, Bytes size) const {
  FreeBlocks::Position best = free.lower_bound({size, 0});
  if (best == free.end()) return best;
  if (options_.expandable) best = expandable_.least_reach(free, best);
  const Bytes found = heap_.table[free[best]].size;
  if (size < options_.max_split && found >= options_.max_split) return free.end();
  if (size >= options_.max_split && found >= size + options_.max_non_split_rounding) return free.end();
  return best;
}

BlockHandle CachingAllocator::find_free(ArenaIndex arena, Pool pool, Bytes size) {
  if (pool == Pool::kLarge && collects_garbage() && heap_.mempool(arena) == kDefaultMempool) ++heap_.searches;
  FreeBlocks& free = heap_.home(arena, pool).free;
  const FreeBlocks::Position best = best_fit(free, size);
  if (best == free.end()) return {};
  const BlockHandle block = free[best];
  free.erase(best);
  return block;
}

// The rest of malloc: no cached block serves the request.
BlockHandle CachingAllocator::obtain(ArenaIndex arena, Pool pool, Bytes size) {
  if (collects_garbage()) collect_garbage();
  const std::int64_t rejections = heap_.statistics.num_oom_rejections;
  BlockHandle block = device_allocate(arena, pool, size);
  if (heap_.statistics.num_oom_rejections > rejections) return {};  // caches stay, no event, not among num_ooms
  if (block.is_none() && heap_.mempool(arena) == kDefaultMempool) {
    block = find_in_pools_for_oom(heap_.stream_handle(arena), pool, size);
  }
  if (block.is_none() && release_available(arena, pool, size)) {
    block = device_allocate(arena, pool, size);
  }
  if (block.is_none() && flushes()) {
    release_cached();
    ++heap_.statistics.num_alloc_retries;
    block = device_allocate(arena, pool, size);
  }
  if (block.is_none() && heap_.statistics.num_oom_rejections == rejections) {
    ++heap_.statistics.num_ooms;
    heap_.events.append(Action::kOutOfMemory, heap_.device().free_bytes(), size, heap_.stream_handle(arena),
                        heap_.mempool(arena));
  }
  return block;
}

// try_mempool_fallback: what lies free in pools that allow it. Blocks of expandable segments do not serve.
BlockHandle CachingAllocator::find_in_pools_for_oom(StreamHandle stream, Pool pool, Bytes size) {
  if (options_.expandable) return {};
  for (const MempoolId mempool : mempools_.used_on_oom()) {
    const BlockHandle found = find_free(heap_.arena_of(stream, mempool), pool, size);
    if (!found.is_none()) return found;
  }
  return {};
}

// alloc_block
BlockHandle CachingAllocator::device_allocate(ArenaIndex arena, Pool pool, Bytes size) {
  const Bytes bytes = segment_size(size, options_);
  // The device is not asked then; tested so for expandable segments too.
  if (exceeds_limit(bytes)) return {};
  if (options_.reject_over_capacity && reserved_bytes() + bytes > heap_.device().total_bytes()) {
    ++heap_.statistics.num_oom_rejections;
    return {};
  }
  if (options_.expandable) return expandable_.allocate(arena, pool, size);
  const std::optional<Bytes> address = heap_.device().allocate(bytes);
  if (!address) return {};

  Segment segment;
  segment.address = *address;
  segment.size = bytes;
  segment.stream = heap_.stream_handle(arena);
  segment.mempool = heap_.mempool(arena);
  segment.pool = pool;
  const BlockHandle block = heap_.table.add(segment, arena, BlockState::kFree);
  heap_.add_reserved(arena, pool, bytes);
  heap_.statistics.segment.increase(pool, 1);
  if (bytes >= options_.max_split) heap_.statistics.oversize_segments.increase(1);
  heap_.log(Action::kSegmentAlloc, heap_.table[block], bytes);
  return block;
}

// alloc_found_block
BlockHandle CachingAllocator::take(BlockHandle found, Bytes request, Bytes size, bool split) {
  Statistics& statistics = heap_.statistics;
  const Block before = heap_.table[found];
  const bool counts_splits = !heap_.table[before.segment].expandable;
  BlockHandle taken = found;
  if (split) {
    taken = heap_.table.cut_front(found, size);
    heap_.insert_free(found);
    if (counts_splits && before.is_split()) {
      statistics.inactive_split_bytes.decrease(before.pool, size);
    } else if (counts_splits) {
      statistics.inactive_split_bytes.increase(before.pool, before.size - size);
      statistics.inactive_split.increase(before.pool, 1);
    }
  } else if (counts_splits && before.is_split()) {
    statistics.inactive_split_bytes.decrease(before.pool, before.size);
    statistics.inactive_split.decrease(before.pool, 1);
  }

  Block& block = heap_.table[taken];
  block.state = BlockState::kAllocated;
  block.used_elsewhere = false;
  block.used_in_capture = false;
  block.requested = request;
  statistics.allocation.increase(block.pool, 1);
  statistics.allocated_bytes.increase(block.pool, block.size);
  statistics.active.increase(block.pool, 1);
  statistics.active_bytes.increase(block.pool, block.size);
  statistics.requested_bytes.increase(block.pool, request);
  if (block.size >= options_.max_split) statistics.oversize_allocations.increase(1);
  return taken;
}

void CachingAllocator::free(BlockHandle freed) {
  Block& block = heap_.table[freed];
  assert(block.state == BlockState::kAllocated);
  heap_.statistics.allocation.decrease(block.pool, 1);
  heap_.statistics.allocated_bytes.decrease(block.pool, block.size);
  if (block.size >= options_.max_split) heap_.statistics.oversize_allocations.decrease(1);
  if (block.used_elsewhere) {
    block.state = BlockState::kPendingFree;
    (mempools_.is_capturing() ? deferred_ : pending_).push_back(freed);
  } else {
    complete_free(freed);
  }
  assert((check_invariants(), true));
}

void CachingAllocator::record_stream(BlockHandle used, StreamHandle stream) {
  Block& block = heap_.table[used];
  assert(block.state == BlockState::kAllocated);
  if (stream != heap_.stream_handle(block.arena)) record_stream(used);
}

void CachingAllocator::record_stream(BlockHandle used) {
  Block& block = heap_.table[used];
  assert(block.state == BlockState::kAllocated);
  block.used_elsewhere = true;
  block.used_in_capture = block.used_in_capture || mempools_.is_capturing();
}

void CachingAllocator::complete(BlockHandle waiting) {
  assert(heap_.table[waiting].state == BlockState::kPendingFree);
  if (std::erase(pending_, waiting) == 0) std::erase(deferred_, waiting);
  finish_free(waiting);
  assert((check_invariants(), true));
}

// synchronize_and_free_events, and process_events on a device whose streams are idle.
void CachingAllocator::complete_all_frees() {
  complete_deferred_frees();
  for (const BlockHandle waiting : pending_) finish_free(waiting);
  pending_.clear();
}

// insert_events_deferred_until_no_capture: the end of a scope was the end of all uses in it.
void CachingAllocator::complete_deferred_frees() {
  for (const BlockHandle waiting : deferred_) {
    if (heap_.table[waiting].used_in_capture) {
      finish_free(waiting);
    } else {
      pending_.push_back(waiting);
    }
  }
  deferred_.clear();
}

void CachingAllocator::finish_free(BlockHandle waiting) {
  heap_.log(Action::kFreeCompleted, heap_.table[waiting], heap_.table[waiting].requested);
  complete_free(waiting);
}

// free_block: join at once, keep everything.
void CachingAllocator::complete_free(BlockHandle freed) {
  Block& block = heap_.table[freed];
  Statistics& statistics = heap_.statistics;
  statistics.active.decrease(block.pool, 1);
  statistics.active_bytes.decrease(block.pool, block.size);
  statistics.requested_bytes.decrease(block.pool, block.requested);

  block.state = BlockState::kFree;
  const Joined joined = heap_.join_neighbours(freed);
  heap_.insert_free(freed);
  if (heap_.table[block.segment].expandable) return;
  const std::int64_t part_of_segment = block.is_split() ? 1 : 0;
  statistics.inactive_split.change(block.pool, part_of_segment - joined.blocks);
  statistics.inactive_split_bytes.change(block.pool, part_of_segment * block.size - joined.bytes);
}

void CachingAllocator::empty_cache() {
  release_cached();
  assert((check_invariants(), true));
}

// garbage_collect_cached_blocks: the large blocks that were not searched out for longest go first.
void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<Bytes>(options_.gc_threshold * static_cast<double>(*limit_));
  const Bytes target = reserved_bytes() - threshold;
  if (target <= 0) return;
  const std::int64_t now = heap_.searches;

  // Expandable blocks would be counted and never released: then there is nothing to do.
  if (options_.expandable) return;
  std::vector<BlockHandle> whole;  // unsplit free blocks in the order of the free set
  double total_age = 0;
  for (const ArenaIndex arena : heap_.arenas_of(kDefaultMempool)) {
    const FreeBlocks& free = heap_.home(arena, Pool::kLarge).free;
    for (auto at = free.begin(); at != free.end(); at = free.next(at)) {
      if (heap_.table[free[at]].is_split()) continue;
      whole.push_back(free[at]);
      total_age += static_cast<double>(now - heap_.table[free[at]].free_since);
    }
  }

  Bytes reclaimed = 0;
  bool released = true;
  while (reclaimed < target && released && !whole.empty()) {
    const double average_age = total_age / static_cast<double>(whole.size());
    released = false;
    std::vector<BlockHandle> kept;
    for (const BlockHandle block : whole) {  // a pass does not stop at the target
      const auto age = static_cast<double>(now - heap_.table[block].free_since);
      if (age < average_age) {
        kept.push_back(block);
        continue;
      }
      released = true;
      reclaimed += heap_.table[block].size;
      total_age -= age;
      heap_.erase_free(block);
      release_segment(block);
    }
    whole = std::move(kept);
  }
}

// release_available_cached_blocks: with max_split_size, give oversize blocks of the same stream back before flushing.
bool CachingAllocator::release_available(ArenaIndex arena, Pool pool, Bytes size) {
  if (options_.max_split == kUnlimitedSplit || options_.expandable) return false;
  FreeBlocks& free = heap_.home(arena, pool).free;
  const Bytes wanted = std::max(size, options_.max_split);
  const FreeBlocks::Position enough = free.lower_bound({wanted, 0});
  if (enough != free.end()) {
    const BlockHandle block = free[enough];
    free.erase(enough);
    release_segment(block);
    return true;
  }
  Bytes released = 0;
  while (released < wanted && !free.is_empty()) {
    const FreeBlocks::Position largest = free.previous(free.end());
    const BlockHandle block = free[largest];
    if (heap_.table[block].size < options_.max_split) break;
    released += heap_.table[block].size;
    free.erase(largest);
    release_segment(block);
  }
  return released >= wanted;
}

std::vector<SegmentCheckpoint> CachingAllocator::checkpoint_pool(MempoolId pool) const {
  std::vector<SegmentCheckpoint> found;
  for (std::size_t s = 0; s < segments().size(); ++s) {
    const Segment& segment = segments()[s];
    if (!segment.alive || segment.mempool != pool) continue;
    SegmentCheckpoint checkpoint{SegmentId{static_cast<std::int32_t>(s)}, {}};
    for (BlockHandle b = segment.first; !b.is_none(); b = heap_.table[b].next) {
      const Block& block = heap_.table[b];
      if (block.state == BlockState::kUnmapped) break;
      checkpoint.pieces.push_back({block.size, block.state == BlockState::kFree ? BlockHandle{} : b});
    }
    found.push_back(std::move(checkpoint));
  }
  return found;
}

// setSegmentStateToCheckpoint, but for the frees at its end.
std::vector<BlockHandle> CachingAllocator::restore_segment(const SegmentCheckpoint& checkpoint) {
  const Segment& segment = segments()[static_cast<std::size_t>(checkpoint.segment.value)];
  if (!segment.alive) return {};
  Bytes whole = 0;
  for (const SegmentCheckpoint::Piece& piece : checkpoint.pieces) whole += piece.size;
  BlockHandle rest = segment.first;
  if (heap_.table[rest].state != BlockState::kFree || heap_.table[rest].size != whole) return {};
  std::vector<BlockHandle> taken;
  for (const SegmentCheckpoint::Piece& piece : checkpoint.pieces) {
    heap_.erase_free(rest);
    const bool split = heap_.table[rest].size > piece.size;
    taken.push_back(take(rest, piece.size, piece.size, split));
    rest = heap_.table[taken.back()].next;
  }
  assert((check_invariants(), true));
  return taken;
}

void CachingAllocator::empty_pool(MempoolId pool) {
  if (!mempools_.is_freeable(pool)) return;
  if (mempools_.is_capturing()) {
    throw ConfigError("private pool " + std::to_string(pool) + " cannot be emptied during a capture",
                      "end the capture first");
  }
  ++heap_.statistics.num_sync_all_streams;
  complete_deferred_frees();
  std::vector<BlockHandle> of_others;
  for (const BlockHandle waiting : pending_) {
    if (mempool_of(waiting) == pool) {
      finish_free(waiting);
    } else {
      of_others.push_back(waiting);
    }
  }
  pending_ = std::move(of_others);
  release_freeable(pool);
  assert((check_invariants(), true));
}

// release_cached_blocks: every stream and all pools, not just enough for the request.
void CachingAllocator::release_cached() {
  if (!mempools_.is_capturing()) {
    ++heap_.statistics.num_sync_all_streams;
    complete_all_frees();
    release_blocks(kDefaultMempool, Pool::kLarge);
    release_blocks(kDefaultMempool, Pool::kSmall);
  }
  const std::vector<MempoolId> freeable = mempools_.freeable();  // a copy: forgotten pools leave it
  for (const MempoolId mempool : freeable) release_freeable(mempool);
}

void CachingAllocator::release_freeable(MempoolId mempool) {
  release_blocks(mempool, Pool::kSmall);
  release_blocks(mempool, Pool::kLarge);
  if (heap_.reserved_by(mempool) == 0) mempools_.forget(mempool);
}

void CachingAllocator::release_blocks(MempoolId mempool, Pool pool) {
  std::vector<BlockHandle> found;  // releasing changes the free set
  for (const ArenaIndex arena : heap_.arenas_of(mempool)) {
    const FreeBlocks& free = heap_.home(arena, pool).free;
    for (auto at = free.begin(); at != free.end(); at = free.next(at)) {
      if (options_.expandable || !heap_.table[free[at]].is_split()) found.push_back(free[at]);
    }
  }
  for (const BlockHandle block : found) {
    if (options_.expandable) {
      expandable_.unmap(block);
    } else {
      heap_.erase_free(block);
      release_segment(block);
    }
  }
}

void CachingAllocator::release_segment(BlockHandle released) {
  const Block block = heap_.table[released];
  heap_.device().release(block.address, block.size);
  heap_.remove_reserved(block.arena, block.pool, block.size);
  heap_.statistics.segment.decrease(block.pool, 1);
  if (block.size >= options_.max_split) heap_.statistics.oversize_segments.decrease(1);
  heap_.log(Action::kSegmentFree, block, block.size);
  heap_.table.remove(block.segment);
}

}  // namespace xmem::allocators
