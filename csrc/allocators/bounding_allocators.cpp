#include "allocators/bounding_allocators.hpp"

#include <algorithm>
#include <stdexcept>

#include "allocators/caching/rounding.hpp"
#include "allocators/device_memory.hpp"

namespace xmem::allocators {
namespace {

void require_room(Bytes reserved, Bytes allocated) {
  if (reserved < allocated) throw std::logic_error("bounding allocator: fewer bytes reserved than allocated");
}

}  // namespace

BlockHandle LiveBlocks::add(Bytes request) {
  const BoundedBlock block{round_size(request, options_), request};
  allocated_ += block.size;
  requested_ += block.requested;
  return blocks_.add(block);
}

void LiveBlocks::free(BlockHandle freed) {
  allocated_ -= blocks_[freed].size;
  requested_ -= blocks_[freed].requested;
  blocks_.remove(freed);
}

BlockHandle PerfectReuse::allocate(Bytes request, StreamHandle) {
  const BlockHandle block = add(request);
  reserved_ = std::max(reserved_, allocated_bytes());
  return block;
}

void PerfectReuse::check_invariants() const {
  require_room(reserved_, allocated_bytes());
}

BlockHandle NeverReuse::allocate(Bytes request, StreamHandle) {
  const BlockHandle block = add(request);
  const Bytes size = blocks()[block].size;
  // An expandable segment grows by whole pages, and by no more than the request alone would need.
  const Bytes asked =
      options().expandable ? round_up(size, expandable_page(pool_of(size), options())) : segment_size(size, options());
  reserved_ = std::min(reserved_ + asked, kUnlimitedBytes);
  return block;
}

void NeverReuse::check_invariants() const {
  require_room(reserved_, std::min(allocated_bytes(), kUnlimitedBytes));
}

}  // namespace xmem::allocators
