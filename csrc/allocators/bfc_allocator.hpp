// TensorFlow's best-fit-with-coalescing allocator (BFC), as its GPUs use it with allow_growth.
//
// Follows the published source, xla/tsl/framework/bfc_allocator.{h,cc}; the function behind each rule is named where
// the rule is. Its bins (powers of two from 256 bytes) are an index: their chunks are ordered by size, then address,
// and searched upwards, so what they find is the smallest sufficient chunk at the lowest address, which one ordered set
// finds too. Not modelled: chunks that wait for a timestamp, retries that sleep, and spatial partitioning; without
// allow_growth one region takes the whole limit at once and there is nothing to simulate. All streams share the memory,
// as TensorFlow has one compute stream for each device.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "allocators/concepts.hpp"
#include "allocators/device_reference.hpp"
#include "allocators/handle_table.hpp"

namespace xmem::allocators {

class BfcAllocator {
 public:
  // What the device has free now, in whole pages, is the limit of the allocator. The device must outlive it.
  explicit BfcAllocator(DeviceReference device);

  BlockHandle allocate(Bytes request, StreamHandle stream);
  void free(BlockHandle chunk);
  void empty_cache() {}  // TensorFlow has no such call

  Bytes allocated_bytes() const { return allocated_; }
  Bytes active_bytes() const { return allocated_; }
  Bytes reserved_bytes() const { return reserved_; }
  Bytes requested_bytes() const { return requested_; }
  Bytes address(BlockHandle chunk) const { return chunks_[chunk].address; }
  Bytes size(BlockHandle chunk) const { return chunks_[chunk].size; }
  void check_invariants() const;

 private:
  struct Chunk {
    Bytes address = 0;
    Bytes size = 0;
    Bytes requested = 0;
    bool in_use = false;
    BlockHandle previous;
    BlockHandle next;
  };
  struct Region {
    Bytes address = 0;
    Bytes size = 0;
    BlockHandle first;
  };
  using FreeChunk = std::pair<std::pair<Bytes, Bytes>, BlockHandle>;  // (size, address), chunk

  FreeChunk key_of(BlockHandle chunk) const;
  BlockHandle find(Bytes request, Bytes size);
  void split(BlockHandle chunk, Bytes size);
  void join_next(BlockHandle chunk);
  bool extend(Bytes size);
  bool release_free_regions(Bytes size);
  bool is_free(const Region& region) const;

  DeviceReference device_;
  Bytes limit_;
  Bytes next_region_;
  HandleTable<Chunk> chunks_;
  std::set<FreeChunk> free_;
  std::vector<Region> regions_;  // by order of creation
  Bytes allocated_ = 0;
  Bytes reserved_ = 0;
  Bytes requested_ = 0;
};
static_assert(FrameworkAllocator<BfcAllocator>);

}  // namespace xmem::allocators
