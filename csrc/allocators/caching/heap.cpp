#include "allocators/caching/heap.hpp"

#include <algorithm>

#include "allocators/caching/rounding.hpp"

namespace xmem::allocators {
namespace {
// A rank by segment age holds the place in the segment, in units of the smallest block, below the age.
constexpr int kPlaceBits = 36;  // 32 TiB of one segment
}  // namespace

FreeKey Heap::key_of(const Block& block) const {
  switch (options_.tie_break) {
    case TieBreak::kAddress:
      return {block.size, block.address};
    case TieBreak::kObjectAge:
      return {block.size, block.object_age};
    case TieBreak::kSegmentAge:
      break;
  }
  const Bytes place = (block.address - table[block.segment].address) / kMinBlockSize;
  return {block.size, (std::int64_t{block.segment.value} << kPlaceBits) | place};
}

void Heap::insert_free(BlockHandle block) {
  Block& freed = table[block];
  freed.free_since = searches;
  home(freed).free.insert(key_of(freed), block);
}

void Heap::erase_free(BlockHandle block) {
  const Block& found = table[block];
  home(found).free.erase(key_of(found));
}

void Heap::insert_unmapped(BlockHandle block) {
  std::vector<BlockHandle>& unmapped = home(table[block]).unmapped;
  const auto address = [&](BlockHandle b) { return table[b].address; };
  unmapped.insert(std::ranges::upper_bound(unmapped, address(block), {}, address), block);
}

void Heap::erase_unmapped(BlockHandle block) {
  std::erase(home(table[block]).unmapped, block);
}

Joined Heap::join_neighbours(BlockHandle block) {
  Joined joined;
  const BlockHandle neighbours[] = {table[block].previous, table[block].next};
  for (const BlockHandle neighbour : neighbours) {
    if (neighbour.is_none() || table[neighbour].state != table[block].state) continue;
    if (table[neighbour].state == BlockState::kFree) {
      erase_free(neighbour);
    } else {
      erase_unmapped(neighbour);
    }
    ++joined.blocks;
    joined.bytes += table[neighbour].size;
    table.absorb(block, neighbour);
  }
  return joined;
}

void Heap::add_reserved(ArenaIndex arena, Pool pool, Bytes size) {
  statistics.reserved_bytes.increase(pool, size);
  ++statistics.num_device_alloc;
  if (mempool(arena) != kDefaultMempool) private_reserved_[mempool(arena)].increase(pool, size);
}

void Heap::remove_reserved(ArenaIndex arena, Pool pool, Bytes size) {
  statistics.reserved_bytes.decrease(pool, size);
  ++statistics.num_device_free;
  if (mempool(arena) != kDefaultMempool) private_reserved_[mempool(arena)].decrease(pool, size);
}

Bytes Heap::reserved_by(MempoolId mempool) const {
  const auto found = private_reserved_.find(mempool);
  return found == private_reserved_.end() ? 0 : found->second.all.current;
}

std::span<const ArenaIndex> Heap::arenas_of(MempoolId mempool) const {
  const auto found = arenas_.find(mempool);
  return found == arenas_.end() ? std::span<const ArenaIndex>() : found->second;
}

ArenaIndex Heap::look_up_arena(StreamHandle stream, MempoolId mempool) {
  std::vector<ArenaIndex>& arenas = arenas_[mempool];
  const auto handle = [&](ArenaIndex arena) { return stream_handle(arena); };
  auto place = std::ranges::lower_bound(arenas, stream, {}, handle);
  if (place == arenas.end() || handle(*place) != stream) {
    place = arenas.insert(place, static_cast<ArenaIndex>(keys_.size()));
    keys_.push_back({stream, mempool});
    stream_pools_.emplace_back();
  }
  last_stream_ = stream;
  last_mempool_ = mempool;
  last_arena_ = *place;
  return *place;
}

}  // namespace xmem::allocators
