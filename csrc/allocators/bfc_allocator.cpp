#include "allocators/bfc_allocator.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "allocators/caching/rounding.hpp"

namespace xmem::allocators {
namespace {

constexpr Bytes kMinAllocation = 256;                  // kMinAllocationSize: unit of rounding and smallest chunk
constexpr Bytes kFirstRegion = Bytes{2} << 20;         // constructor, allow_growth
constexpr Bytes kMaxInternalWaste = Bytes{128} << 20;  // max_internal_fragmentation_bytes_ without a fraction
// TensorFlow's limit leaves room on the device; here the last region shall not be refused for its rounding to pages.
constexpr Bytes kDevicePage = Bytes{2} << 20;
constexpr float kBackpedalFactor = 0.9F;  // Extend; a float there too

void require(bool holds, const char* rule) {
  if (!holds) throw std::logic_error(std::string("BFC allocator: ") + rule);
}

}  // namespace

BfcAllocator::BfcAllocator(DeviceReference device)
    : device_(device),
      limit_(device.free_bytes() / kDevicePage * kDevicePage),
      next_region_(round_up(std::min(limit_, kFirstRegion), kMinAllocation)) {}

// AllocateRawInternal
BlockHandle BfcAllocator::allocate(Bytes request, StreamHandle) {
  const Bytes size = round_up(request, kMinAllocation);
  BlockHandle found = find(request, size);
  if (found.is_none() && extend(size)) found = find(request, size);
  if (found.is_none() && release_free_regions(size) && extend(size)) found = find(request, size);
  return found;
}

// FindChunkPtr and ShouldSplitChunk: the rest becomes a chunk of its own when it is as large as the request, or
// 128 MiB.
BlockHandle BfcAllocator::find(Bytes request, Bytes size) {
  const auto best = free_.lower_bound({{size, 0}, {}});
  if (best == free_.end()) return {};
  const BlockHandle found = best->second;
  free_.erase(best);
  const Bytes available = chunks_[found].size;
  if (available >= 2 * size || available - size >= kMaxInternalWaste) split(found, size);
  Chunk& chunk = chunks_[found];
  chunk.in_use = true;
  chunk.requested = request;
  allocated_ += chunk.size;
  requested_ += request;
  return found;
}

// SplitChunk: the front is kept, the rest goes back.
void BfcAllocator::split(BlockHandle kept, Bytes size) {
  Chunk rest;
  rest.address = chunks_[kept].address + size;
  rest.size = chunks_[kept].size - size;
  rest.previous = kept;
  rest.next = chunks_[kept].next;
  const BlockHandle handle = chunks_.add(rest);
  chunks_[kept].size = size;
  chunks_[kept].next = handle;
  if (!rest.next.is_none()) chunks_[rest.next].previous = handle;
  free_.insert(key_of(handle));
}

// FreeAndMaybeCoalesce: with the next chunk, then the previous one.
void BfcAllocator::free(BlockHandle freed) {
  Chunk& chunk = chunks_[freed];
  allocated_ -= chunk.size;
  requested_ -= chunk.requested;
  chunk.in_use = false;
  chunk.requested = 0;
  const auto is_free = [&](BlockHandle neighbour) { return !neighbour.is_none() && !chunks_[neighbour].in_use; };
  BlockHandle joined = freed;
  if (is_free(chunk.next)) {
    free_.erase(key_of(chunk.next));
    join_next(freed);
  }
  if (is_free(chunk.previous)) {
    joined = chunk.previous;
    free_.erase(key_of(joined));
    join_next(joined);
  }
  free_.insert(key_of(joined));
}

// Merge
void BfcAllocator::join_next(BlockHandle kept) {
  const BlockHandle taken = chunks_[kept].next;
  chunks_[kept].size += chunks_[taken].size;
  chunks_[kept].next = chunks_[taken].next;
  if (!chunks_[kept].next.is_none()) chunks_[chunks_[kept].next].previous = kept;
  chunks_.remove(taken);
}

// Extend: a region twice as large as the one before, and as often as the request needs; less where the device has less.
bool BfcAllocator::extend(Bytes size) {
  const Bytes available = (limit_ - reserved_) / kMinAllocation * kMinAllocation;
  if (size > available) return false;
  bool doubled = false;
  while (size > next_region_) {
    next_region_ *= 2;
    doubled = true;
  }
  Bytes bytes = std::min(next_region_, available);
  std::optional<Bytes> address = device_.allocate(bytes);
  while (!address) {
    // Rounding up must not give the same size again.
    const auto less = round_up(static_cast<Bytes>(static_cast<float>(bytes) * kBackpedalFactor), kMinAllocation);
    bytes = std::min(less, bytes - kMinAllocation);
    if (bytes < size) return false;
    address = device_.allocate(bytes);
  }
  if (!doubled) next_region_ *= 2;
  reserved_ += bytes;
  Chunk whole;
  whole.address = *address;
  whole.size = bytes;
  const BlockHandle handle = chunks_.add(whole);
  regions_.push_back({*address, bytes, handle});
  free_.insert(key_of(handle));
  return true;
}

// DeallocateFreeRegions, on by default for GPUs: all free regions or, where even they would not be enough, none.
bool BfcAllocator::release_free_regions(Bytes size) {
  Bytes free_bytes = 0;
  for (const Region& region : regions_) {
    if (is_free(region)) free_bytes += region.size;
  }
  if (free_bytes == 0 || size > limit_ - reserved_ + free_bytes) return false;
  std::erase_if(regions_, [&](const Region& region) {
    if (!is_free(region)) return false;
    free_.erase(key_of(region.first));
    chunks_.remove(region.first);
    device_.release(region.address, region.size);
    reserved_ -= region.size;
    return true;
  });
  return true;
}

// Free neighbours are always joined, so a free region is one chunk.
bool BfcAllocator::is_free(const Region& region) const {
  const Chunk& first = chunks_[region.first];
  return !first.in_use && first.size == region.size;
}

BfcAllocator::FreeChunk BfcAllocator::key_of(BlockHandle chunk) const {
  return {{chunks_[chunk].size, chunks_[chunk].address}, chunk};
}

void BfcAllocator::check_invariants() const {
  Bytes reserved = 0;
  Bytes allocated = 0;
  Bytes requested = 0;
  std::size_t free_chunks = 0;
  for (const Region& region : regions_) {
    Bytes address = region.address;
    BlockHandle previous;
    for (BlockHandle at = region.first; !at.is_none(); at = chunks_[at].next) {
      const Chunk& chunk = chunks_[at];
      require(chunk.address == address && chunk.previous == previous, "chunks do not tile their region");
      require(chunk.size > 0 && chunk.size % kMinAllocation == 0, "a chunk of an odd size");
      if (chunk.in_use) {
        allocated += chunk.size;
        requested += chunk.requested;
      } else {
        ++free_chunks;
        require(free_.contains(key_of(at)), "a free chunk is not in the free set");
        require(previous.is_none() || chunks_[previous].in_use, "two free neighbours");
      }
      address += chunk.size;
      previous = at;
    }
    require(address == region.address + region.size, "chunks do not fill their region");
    reserved += region.size;
  }
  require(reserved == reserved_ && allocated == allocated_ && requested == requested_, "a gauge is wrong");
  require(free_chunks == free_.size(), "the free set holds what is not free");
}

}  // namespace xmem::allocators
