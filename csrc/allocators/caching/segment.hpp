// Segments and the blocks that tile them, as dense arrays; blocks of one segment are a list in address order.
//
// Knows nothing of free sets: it cuts and joins, heap.hpp keeps the order. The object whose number survives a cut or a
// join matters, since PyTorch 2.12 breaks ties by the age of the Block object: a cut creates a new object for the
// front part, a join keeps the object that is being freed, mapped or unmapped.
#pragma once

#include <cstdint>
#include <vector>

#include "allocators/ids.hpp"
#include "base/units.hpp"

namespace xmem::allocators {

enum class BlockState : std::uint8_t {
  kFree = 0,
  kAllocated = 1,
  kPendingFree = 2,  // freed by the program, still in use on another stream
  kUnmapped = 3,     // address space of an expandable segment without memory behind it
  kRetired = 4,      // no block: the number waits to be used again
};

struct Block {
  Bytes address = 0;
  Bytes size = 0;
  Bytes requested = 0;          // as asked, before rounding; of the last allocation
  std::int64_t free_since = 0;  // searches of the pool when it became free: its age for garbage collection
  BlockHandle previous;         // neighbours in the segment
  BlockHandle next;
  SegmentId segment;
  std::uint32_t object_age = 0;
  ArenaIndex arena = 0;
  Pool pool = Pool::kSmall;
  BlockState state = BlockState::kRetired;
  bool used_elsewhere = false;   // on another stream than its own
  bool used_in_capture = false;  // so, during a capture

  bool is_split() const { return !previous.is_none() || !next.is_none(); }
};

struct Segment {
  Bytes address = 0;
  Bytes size = 0;  // of an expandable one: of the address range, mapped or not
  StreamHandle stream = 0;
  BlockHandle first;
  MempoolId mempool = kDefaultMempool;
  Pool pool = Pool::kSmall;
  bool expandable = false;
  bool alive = true;
};

class SegmentTable {
 public:
  Block& operator[](BlockHandle block) { return blocks_[static_cast<std::size_t>(block.value)]; }
  const Block& operator[](BlockHandle block) const { return blocks_[static_cast<std::size_t>(block.value)]; }
  const Segment& operator[](SegmentId segment) const { return segments_[static_cast<std::size_t>(segment.value)]; }
  const std::vector<Segment>& segments() const { return segments_; }
  std::size_t block_capacity() const { return blocks_.size(); }

  // A segment that one block of the given state covers; its BlockHandle.
  BlockHandle add(const Segment& segment, ArenaIndex arena, BlockState state);
  void remove(SegmentId segment);  // one block covers it

  // Cuts `size` bytes off the front of the block. The new object is the front; the old one keeps the rest.
  BlockHandle cut_front(BlockHandle block, Bytes size);
  // Cuts everything behind the first `size` bytes off. The new object is the rest.
  BlockHandle cut_back(BlockHandle block, Bytes size);
  // The block takes over the range of a neighbour, whose number is retired.
  void absorb(BlockHandle block, BlockHandle neighbour);

 private:
  BlockHandle new_block(const Block& like);
  void retire(BlockHandle block);

  std::vector<Block> blocks_;
  std::vector<Segment> segments_;
  std::vector<BlockHandle> retired_;
  std::uint32_t next_object_age_ = 0;
};

}  // namespace xmem::allocators
