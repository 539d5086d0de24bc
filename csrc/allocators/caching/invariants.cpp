// CachingAllocator::check_invariants: everything that must hold after every step, recomputed from the blocks.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "allocators/caching/caching_allocator.hpp"
#include "allocators/caching/rounding.hpp"

namespace xmem::allocators {
namespace {

void require(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(std::string("caching allocator: ") + rule);
}

// The gauges of one pool, counted from its blocks.
struct Counted {
  std::int64_t segments = 0, allocations = 0, active = 0, inactive_splits = 0;
  Bytes reserved = 0, allocated = 0, active_bytes = 0, inactive_split_bytes = 0, requested = 0;
  std::size_t free_blocks = 0, unmapped_blocks = 0, pending_blocks = 0;

  void add(const Block& block, bool expandable) {
    const bool allocated_now = block.state == BlockState::kAllocated;
    const bool active_now = allocated_now || block.state == BlockState::kPendingFree;
    if (block.state != BlockState::kUnmapped) reserved += block.size;
    if (allocated_now) ++allocations, allocated += block.size;
    if (active_now) ++active, active_bytes += block.size, requested += block.requested;
    if (block.state == BlockState::kPendingFree) ++pending_blocks;
    if (block.state == BlockState::kUnmapped) ++unmapped_blocks;
    if (block.state != BlockState::kFree) return;
    ++free_blocks;
    if (block.is_split() && !expandable) ++inactive_splits, inactive_split_bytes += block.size;
  }

  void require_equal(const Statistics& statistics, std::size_t pool) const {
    const auto gauge = [&](const PooledStat& stat) { return stat.of_pool[pool].current; };
    require(gauge(statistics.segment) == segments, "the segment counter differs from the segments");
    require(gauge(statistics.allocation) == allocations, "the allocation counter differs from the blocks");
    require(gauge(statistics.active) == active, "the active counter differs from the blocks");
    require(gauge(statistics.inactive_split) == inactive_splits, "the split counter differs from the blocks");
    require(gauge(statistics.reserved_bytes) == reserved, "reserved bytes differ from the segments");
    require(gauge(statistics.allocated_bytes) == allocated, "allocated bytes differ from the blocks");
    require(gauge(statistics.active_bytes) == active_bytes, "active bytes differ from the blocks");
    require(gauge(statistics.inactive_split_bytes) == inactive_split_bytes, "split bytes differ from the blocks");
    require(gauge(statistics.requested_bytes) == requested, "requested bytes differ from the blocks");
  }
};

void require_gauge_adds_up(const PooledStat& stat) {
  require(stat.all.current == stat.of_pool[0].current + stat.of_pool[1].current, "the pools do not add up");
  for (const Stat& part : {stat.all, stat.of_pool[0], stat.of_pool[1]}) {
    require(part.current >= 0 && part.peak >= part.current && part.freed() >= 0, "a gauge is out of its bounds");
  }
}

}  // namespace

void CachingAllocator::check_invariants() const {
  const SegmentTable& table = heap_.table;
  const bool large_blocks_have_a_minimum = options_.max_split == kUnlimitedSplit;
  std::array<Counted, 2> counted;
  std::map<MempoolId, Bytes> reserved_by;

  for (std::size_t id = 0; id < table.segments().size(); ++id) {
    const Segment& segment = table.segments()[id];
    if (!segment.alive) continue;
    Counted& pool = counted[static_cast<std::size_t>(segment.pool)];
    if (!segment.expandable) ++pool.segments;
    Bytes address = segment.address;
    BlockHandle previous;
    for (BlockHandle at = segment.first; !at.is_none(); at = table[at].next) {
      const Block& block = table[at];
      require(block.state != BlockState::kRetired, "a segment lists a retired block");
      require(block.segment.value == static_cast<std::int32_t>(id), "a block names another segment");
      require(block.address == address && block.previous == previous, "blocks do not tile their segment");
      require(block.size > 0 && block.size % kMinBlockSize == 0, "a block is not a multiple of 512 bytes");
      require(block.pool == segment.pool, "a block is in another pool than its segment");
      require(heap_.stream_handle(block.arena) == segment.stream, "a block is on another stream");
      require(heap_.mempool(block.arena) == segment.mempool, "a block is in another mempool than its segment");
      if (segment.mempool != kDefaultMempool && block.state != BlockState::kUnmapped) {
        reserved_by[segment.mempool] += block.size;
      }
      require(
          !large_blocks_have_a_minimum || segment.expandable || block.pool == Pool::kSmall || block.size > kSmallSize,
          "a large block is not above 1 MiB");
      const bool joinable = block.state == BlockState::kFree || block.state == BlockState::kUnmapped;
      require(previous.is_none() || !joinable || table[previous].state != block.state, "free neighbours not joined");
      pool.add(block, segment.expandable);
      address += block.size;
      previous = at;
    }
    require(address == segment.address + segment.size, "blocks do not fill their segment");
  }

  for (std::size_t pool = 0; pool < counted.size(); ++pool) {
    counted[pool].require_equal(heap_.statistics, pool);
    std::size_t free_blocks = 0;
    std::size_t unmapped_blocks = 0;
    for (ArenaIndex arena = 0; arena < heap_.arena_count(); ++arena) {
      const StreamPool& home = heap_.home(arena, static_cast<Pool>(pool));
      FreeKey last{-1, 0};
      for (auto at = home.free.begin(); at != home.free.end(); at = home.free.next(at)) {
        const Block& block = table[home.free[at]];
        require(block.state == BlockState::kFree, "the free set holds a block that is not free");
        require(block.arena == arena, "the free set holds a block of another arena");
        require(last < heap_.key_of(block), "the free set is out of order");
        last = heap_.key_of(block);
        ++free_blocks;
      }
      for (const BlockHandle unmapped : home.unmapped) {
        require(table[unmapped].state == BlockState::kUnmapped, "the unmapped set holds a mapped block");
        ++unmapped_blocks;
      }
    }
    require(free_blocks == counted[pool].free_blocks, "the free set lacks a free block");
    require(unmapped_blocks == counted[pool].unmapped_blocks, "the unmapped set lacks a block");
  }
  for (const auto& [mempool, bytes] : reserved_by) {
    require(heap_.reserved_by(mempool) == bytes, "reserved bytes of a private pool differ from its segments");
  }
  require(pending_.size() + deferred_.size() == counted[0].pending_blocks + counted[1].pending_blocks,
          "a pending free is lost");

  const Statistics& statistics = heap_.statistics;
  for (const PooledStat* stat :
       {&statistics.allocation, &statistics.segment, &statistics.active, &statistics.inactive_split,
        &statistics.allocated_bytes, &statistics.reserved_bytes, &statistics.active_bytes,
        &statistics.inactive_split_bytes, &statistics.requested_bytes}) {
    require_gauge_adds_up(*stat);
  }
}

}  // namespace xmem::allocators
