// expandable_segments:True: address ranges of an arena and pool into which pages are mapped as they are needed.
//
// A range is a chain of allocated, free and unmapped blocks; free and unmapped ones never join. Mirrors
// find_expandable_block, try_allocate_expandable_block, map_block and unmap_block of CUDACachingAllocator.cpp
// (2.6 to 2.14). Whole pages go back only in a full flush; the ragged ends of a free block never do.
#pragma once

#include "allocators/caching/heap.hpp"

namespace xmem::allocators {

class ExpandableSegments {
 public:
  explicit ExpandableSegments(Heap& heap) : heap_(heap) {}

  // A free block of at least `size` bytes, out of the free set; none when the device is out of memory. Pages that were
  // mapped before the failure stay mapped and free.
  BlockHandle allocate(ArenaIndex arena, Pool pool, Bytes size);

  // Best fit counts the unmapped space behind a block as its own: of the candidates from `at` on, the one that
  // reaches least.
  FreeBlocks::Position least_reach(const FreeBlocks& free, FreeBlocks::Position at) const;

  // Gives the whole pages inside a free block back, and the range with them if nothing else is left of it.
  void unmap(BlockHandle block);

  // For CachingAllocator::restore: the unmapped rest of the range that a mapped stretch lies in, from the stretch on.
  // A new range starts at the first stretch of a pool and arena that lies in none of `rests`.
  BlockHandle restore_range(const Segment& stretch, ArenaIndex arena, std::vector<BlockHandle>& rests);

 private:
  BlockHandle find_space(ArenaIndex arena, Pool pool, Bytes size) const;
  BlockHandle reserve_range(ArenaIndex arena, Pool pool);
  Bytes range_bytes(Pool pool) const;
  bool has_space(BlockHandle first, Bytes size) const;
  bool map(BlockHandle block, Bytes size);
  Bytes reach(BlockHandle block) const;

  Heap& heap_;
};

}  // namespace xmem::allocators
