// Two allocators that no real one can beat or be worse than: bounds around every estimate.
//
// Both round requests as PyTorch's allocator would under the same options, and ask no device: they never fail.
#pragma once

#include "allocators/concepts.hpp"
#include "allocators/handle_table.hpp"
#include "allocators/options.hpp"

namespace xmem::allocators {

struct BoundedBlock {
  Bytes size = 0;
  Bytes requested = 0;
};

// What both have in common: who is alive.
class LiveBlocks {
 public:
  explicit LiveBlocks(const AllocatorOptions& options) : options_(options) {}

  void free(BlockHandle block);
  Bytes allocated_bytes() const { return allocated_; }
  Bytes active_bytes() const { return allocated_; }
  Bytes requested_bytes() const { return requested_; }

 protected:
  BlockHandle add(Bytes request);
  const AllocatorOptions& options() const { return options_; }
  const HandleTable<BoundedBlock>& blocks() const { return blocks_; }

 private:
  AllocatorOptions options_;
  HandleTable<BoundedBlock> blocks_;
  Bytes allocated_ = 0;
  Bytes requested_ = 0;
};

// Perfect reuse: no fragmentation, no slack, no segments. Holds the most that was alive at one time since the cache was
// last emptied. Every allocator that rounds so and moves no block reserves at least as much.
class PerfectReuse : public LiveBlocks {
 public:
  using LiveBlocks::LiveBlocks;

  BlockHandle allocate(Bytes request, StreamHandle stream);
  void empty_cache() { reserved_ = allocated_bytes(); }
  Bytes reserved_bytes() const { return reserved_; }
  void check_invariants() const;

 private:
  Bytes reserved_ = 0;
};
static_assert(FrameworkAllocator<PerfectReuse>);

// No reuse: each request gets device memory of its own, what the caching allocator would ask for on a miss, and
// nothing is ever given back. The caching allocator asks at most that much for each request, so it reserves no more.
class NeverReuse : public LiveBlocks {
 public:
  using LiveBlocks::LiveBlocks;

  BlockHandle allocate(Bytes request, StreamHandle stream);
  void empty_cache() {}
  Bytes reserved_bytes() const { return reserved_; }
  void check_invariants() const;

 private:
  Bytes reserved_ = 0;  // stops at kUnlimitedBytes
};
static_assert(FrameworkAllocator<NeverReuse>);

}  // namespace xmem::allocators
