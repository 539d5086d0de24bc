#include "simulation/replay.hpp"

#include <string>

#include "allocators/counters.hpp"
#include "base/error.hpp"
#include "base/huge_pages.hpp"
#include "sequence/request_sequence.hpp"
#include "simulation/request_walk.hpp"

namespace xmem::simulation {
namespace {

using allocators::BlockHandle;
using allocators::CachingAllocator;
using sequence::RequestKind;

class Run {
 public:
  Run(const Requests& requests, const ReplayOptions& options)
      : requests_(requests),
        options_(options),
        device_(options.device),
        allocator_(options.allocator, allocators::DeviceReference(device_)),
        walk_(requests, allocator_) {
    const std::size_t blocks = requests.size_bytes.size();
    reserve_on_huge_pages(replay_.placement.address, blocks);
    reserve_on_huge_pages(replay_.placement.segment, blocks);
    reserve_on_huge_pages(replay_.placement.size, blocks);
    replay_.placement.address.assign(blocks, -1);
    replay_.placement.segment.assign(blocks, -1);
    replay_.placement.size.assign(blocks, -1);
  }

  Replay run() {
    const std::size_t count = requests_to_replay();
    reserve_on_huge_pages(replay_.timeline.allocated, count);
    reserve_on_huge_pages(replay_.timeline.active, count);
    reserve_on_huge_pages(replay_.timeline.reserved, count);
    reserve_on_huge_pages(replay_.timeline.requested, count);
    for (std::size_t r = 0; r < count; ++r) {
      const bool goes_on = apply(r);
      record(r);
      if (!goes_on) break;
    }
    replay_.statistics = allocator_.statistics();
    replay_.reserved_by_private_pools = allocator_.reserved_by_private_pools();
    replay_.events = allocator_.events();
    replay_.state = allocator_.state();
    for (const allocators::Segment& segment : allocator_.segments()) {
      replay_.segment_mempool.push_back(segment.mempool);
    }
    name_blocks_of_state();
    return std::move(replay_);
  }

 private:
  std::size_t requests_to_replay() const {
    const auto count = static_cast<std::int64_t>(requests_.kind.size());
    if (!options_.until) return requests_.kind.size();
    if (*options_.until < -1 || *options_.until >= count) {
      throw ConfigError("the last request " + std::to_string(*options_.until) + " is out of range",
                        "use the index of a request, below " + std::to_string(count) + ", or -1 for none");
    }
    return static_cast<std::size_t>(*options_.until + 1);
  }

  // False when the replay ends with this request.
  bool apply(std::size_t r) {
    const bool served = walk_.apply(r);
    for (const std::size_t b : walk_.settled()) place(b);
    if (!served) {
      const allocators::OutOfMemory& why = allocator_.last_out_of_memory();
      replay_.failures.push_back(
          {static_cast<std::int64_t>(r), walk_.last_tried_bytes(), why.rounded_size, why.device_free_bytes});
      return options_.on_out_of_memory == OnOutOfMemory::kDrop;
    }
    if (static_cast<RequestKind>(requests_.kind[r]) == RequestKind::kAlloc) {
      place(static_cast<std::size_t>(requests_.block[r]));
    }
    return true;
  }

  void place(std::size_t b) {
    const std::int32_t handle = walk_.handles()[b];
    if (handle == walk_.kNothing) replay_.placement.size[b] = 0;
    if (handle < 0) return;
    const allocators::Block& placed = allocator_.block(BlockHandle{handle});
    replay_.placement.address[b] = placed.address;
    replay_.placement.segment[b] = placed.segment.value;
    replay_.placement.size[b] = placed.size;
  }

  void record(std::size_t r) {
    const allocators::Statistics& statistics = allocator_.statistics();
    const auto request = static_cast<std::int64_t>(r);
    replay_.timeline.allocated.push_back(statistics.allocated_bytes.all.current);
    replay_.timeline.active.push_back(statistics.active_bytes.all.current);
    replay_.timeline.reserved.push_back(statistics.reserved_bytes.all.current);
    replay_.timeline.requested.push_back(statistics.requested_bytes.all.current);
    raise(replay_.peaks.allocated, statistics.allocated_bytes.all.peak, request);
    raise(replay_.peaks.active, statistics.active_bytes.all.peak, request);
    raise(replay_.peaks.reserved, statistics.reserved_bytes.all.peak, request);
    raise(replay_.peaks.requested, statistics.requested_bytes.all.peak, request);
    if (options_.every_counter) allocators::append_counters(statistics, replay_.counters);
    while (replay_.event_request.size() < allocator_.events().count()) replay_.event_request.push_back(request);
  }

  static void raise(Peak& peak, Bytes bytes, std::int64_t request) {
    if (bytes > peak.bytes) peak = {bytes, request};
  }

  void name_blocks_of_state() {
    const std::vector<std::int32_t>& handles = walk_.handles();
    std::vector<std::int32_t> block_of_handle;
    for (std::size_t b = 0; b < handles.size(); ++b) {
      if (handles[b] < 0) continue;
      const auto handle = static_cast<std::size_t>(handles[b]);
      if (handle >= block_of_handle.size()) block_of_handle.resize(handle + 1, -1);
      block_of_handle[handle] = static_cast<std::int32_t>(b);
    }
    for (const std::int32_t handle : replay_.state.block_handle) {
      const auto h = static_cast<std::size_t>(handle);
      replay_.state_block.push_back(h < block_of_handle.size() ? block_of_handle[h] : -1);
    }
  }

  const Requests& requests_;
  const ReplayOptions& options_;
  allocators::SimulatedDevice device_;
  CachingAllocator allocator_;
  RequestWalk<CachingAllocator> walk_;
  Replay replay_;
};

}  // namespace

Replay replay(const Requests& requests, const ReplayOptions& options) {
  require_consistent(requests);
  return Run(requests, options).run();
}

}  // namespace xmem::simulation
