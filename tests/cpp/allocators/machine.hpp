// A device and an allocator over it, for tests written in MiB as the examples of the specification are.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "allocators/caching/caching_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "testing.hpp"

namespace xmem::testing {

using namespace xmem::literals;
using allocators::Action;
using allocators::AllocatorOptions;
using allocators::BlockHandle;
using allocators::TieBreak;

class Machine {
 public:
  explicit Machine(const AllocatorOptions& options = {}, Bytes capacity = allocators::kUnlimitedBytes)
      : device({.capacity = capacity}), allocator(options, allocators::DeviceReference(device)) {
    base_ = device.reserve(1);
    device.unreserve(base_, 1);
  }

  BlockHandle malloc(Bytes size, allocators::StreamHandle stream = 0) {
    const BlockHandle block = allocator.allocate(size, stream);
    allocator.check_invariants();
    return block;
  }
  void free(BlockHandle block) {
    allocator.free(block);
    allocator.check_invariants();
  }
  void empty_cache() {
    allocator.empty_cache();
    allocator.check_invariants();
  }

  // From the first address that the device gives out.
  Bytes offset(BlockHandle block) const { return allocator.block(block).address - base_; }
  Bytes size(BlockHandle block) const { return allocator.block(block).size; }
  Bytes reserved() const { return allocator.reserved_bytes(); }
  Bytes allocated() const { return allocator.allocated_bytes(); }
  const allocators::Statistics& statistics() const { return allocator.statistics(); }

  // Sizes of the free blocks in ascending address.
  std::vector<Bytes> free_sizes() const {
    const allocators::AllocatorState state = allocator.state();
    std::vector<Bytes> sizes;
    for (std::size_t b = 0; b < state.block_size.size(); ++b) {
      if (state.block_state[b] == 0) sizes.push_back(state.block_size[b]);
    }
    return sizes;
  }

  // Events since the last call, such as "segment_free 30@40" in MiB.
  std::vector<std::string> events() {
    static const char* const kNames[] = {"segment_alloc", "segment_free",   "segment_map",
                                         "segment_unmap", "free_completed", "oom"};
    const allocators::EventLog& log = allocator.events();
    std::vector<std::string> text;
    for (; seen_ < log.count(); ++seen_) {
      const Bytes where = log.action[seen_] == Action::kOutOfMemory ? log.address[seen_] : log.address[seen_] - base_;
      text.push_back(std::string(kNames[static_cast<std::size_t>(log.action[seen_])]) + " " + mib(log.size[seen_]) +
                     "@" + mib(where));
    }
    return text;
  }

  allocators::SimulatedDevice device;
  allocators::CachingAllocator allocator;

 private:
  static std::string mib(Bytes size) {
    return size % 1_MiB == 0 ? std::to_string(size / 1_MiB) : std::to_string(size) + "B";
  }

  Bytes base_ = 0;
  std::size_t seen_ = 0;
};

using Sizes = std::vector<Bytes>;
using Events = std::vector<std::string>;

}  // namespace xmem::testing
