#include "allocators/caching/segment.hpp"

namespace xmem::allocators {

BlockHandle SegmentTable::add(const Segment& segment, ArenaIndex arena, BlockState state) {
  const SegmentId id{static_cast<std::int32_t>(segments_.size())};
  Block whole;
  whole.address = segment.address;
  whole.size = segment.size;
  whole.segment = id;
  whole.arena = arena;
  whole.pool = segment.pool;
  whole.state = state;
  const BlockHandle block = new_block(whole);
  segments_.push_back(segment);
  segments_.back().first = block;
  return block;
}

void SegmentTable::remove(SegmentId segment) {
  Segment& gone = segments_[static_cast<std::size_t>(segment.value)];
  gone.alive = false;
  retire(gone.first);
}

BlockHandle SegmentTable::cut_front(BlockHandle block, Bytes size) {
  const BlockHandle front = new_block((*this)[block]);
  Block& taken = (*this)[front];
  Block& rest = (*this)[block];
  taken.size = size;
  taken.next = block;
  if (taken.previous.is_none()) {
    segments_[static_cast<std::size_t>(taken.segment.value)].first = front;
  } else {
    (*this)[taken.previous].next = front;
  }
  rest.previous = front;
  rest.address += size;
  rest.size -= size;
  return front;
}

BlockHandle SegmentTable::cut_back(BlockHandle block, Bytes size) {
  const BlockHandle back = new_block((*this)[block]);
  Block& kept = (*this)[block];
  Block& rest = (*this)[back];
  rest.address += size;
  rest.size -= size;
  rest.previous = block;
  if (!rest.next.is_none()) (*this)[rest.next].previous = back;
  kept.size = size;
  kept.next = back;
  return back;
}

void SegmentTable::absorb(BlockHandle block, BlockHandle neighbour) {
  Block& kept = (*this)[block];
  const Block& gone = (*this)[neighbour];
  kept.size += gone.size;
  if (kept.previous == neighbour) {
    kept.address = gone.address;
    kept.previous = gone.previous;
    if (kept.previous.is_none()) {
      segments_[static_cast<std::size_t>(kept.segment.value)].first = block;
    } else {
      (*this)[kept.previous].next = block;
    }
  } else {
    kept.next = gone.next;
    if (!kept.next.is_none()) (*this)[kept.next].previous = block;
  }
  retire(neighbour);
}

BlockHandle SegmentTable::new_block(const Block& like) {
  BlockHandle block;
  if (retired_.empty()) {
    block.value = static_cast<std::int32_t>(blocks_.size());
    blocks_.push_back(Block(like));  // a copy first: `like` may lie in the array that grows
  } else {
    block = retired_.back();
    retired_.pop_back();
    (*this)[block] = like;
  }
  (*this)[block].object_age = next_object_age_++;
  return block;
}

void SegmentTable::retire(BlockHandle block) {
  (*this)[block].state = BlockState::kRetired;
  retired_.push_back(block);
}

}  // namespace xmem::allocators
