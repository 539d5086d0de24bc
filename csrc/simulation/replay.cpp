#include "simulation/replay.hpp"

#include <string>

#include "base/error.hpp"

namespace xmem::simulation {
namespace {

using allocators::BlockHandle;
using allocators::CachingAllocator;
using sequence::RequestKind;

constexpr std::int32_t kNotAlive = -1;
constexpr std::int32_t kDropped = -2;  // its free is to be skipped

class Run {
 public:
  Run(const Requests& requests, const ReplayOptions& options)
      : requests_(requests),
        options_(options),
        device_(options.device),
        allocator_(options.allocator, allocators::DeviceReference(device_)),
        handles_(requests.size_bytes.size(), kNotAlive) {
    replay_.placement.address.assign(handles_.size(), -1);
    replay_.placement.segment.assign(handles_.size(), -1);
    replay_.placement.size.assign(handles_.size(), -1);
  }

  Replay run() {
    const std::size_t count = requests_to_replay();
    replay_.timeline.allocated.reserve(count);
    replay_.timeline.active.reserve(count);
    replay_.timeline.reserved.reserve(count);
    replay_.timeline.requested.reserve(count);
    for (std::size_t r = 0; r < count; ++r) {
      const bool goes_on = apply(r);
      record(r);
      if (!goes_on) break;
    }
    replay_.statistics = allocator_.statistics();
    replay_.events = allocator_.events();
    replay_.state = allocator_.state();
    name_blocks_of_state();
    return std::move(replay_);
  }

 private:
  std::size_t requests_to_replay() const {
    const auto count = static_cast<std::int64_t>(requests_.kind.size());
    if (!options_.until) return requests_.kind.size();
    if (*options_.until < -1 || *options_.until >= count) {
      throw ConfigError("until request " + std::to_string(*options_.until),
                        "the index of a request, below " + std::to_string(count) + ", or -1 for none");
    }
    return static_cast<std::size_t>(*options_.until + 1);
  }

  // False when the replay ends with this request.
  bool apply(std::size_t r) {
    switch (static_cast<RequestKind>(requests_.kind[r])) {
      case RequestKind::kAlloc:
        return allocate(r);
      case RequestKind::kFree:
        free(r);
        return true;
      case RequestKind::kEmptyCache:
        allocator_.empty_cache();
        return true;
    }
    throw ConfigError("request " + std::to_string(r) + " of kind " + std::to_string(requests_.kind[r]),
                      "0 (allocation), 1 (free) or 2 (emptied cache)");
  }

  bool allocate(std::size_t r) {
    const std::size_t b = block_of(r);
    const Bytes size = requests_.size_bytes[b];
    if (handles_[b] != kNotAlive || size <= 0 || size > sequence::kMaxBlockBytes) {
      throw ConfigError("request " + std::to_string(r) + ", an allocation of block " + std::to_string(b) + " of " +
                            std::to_string(size) + " bytes",
                        "a block that is not alive, of 1 to 2^44 bytes; build the requests with make_requests");
    }
    const BlockHandle handle = allocator_.allocate(size, requests_.stream[b]);
    if (handle.is_none()) {
      const allocators::OutOfMemory& why = allocator_.last_out_of_memory();
      replay_.failures.push_back({static_cast<std::int64_t>(r), size, why.rounded_size, why.device_free_bytes});
      handles_[b] = kDropped;
      return options_.on_out_of_memory == OnOutOfMemory::kDrop;
    }
    const allocators::Block& placed = allocator_.block(handle);
    handles_[b] = handle.value;
    replay_.placement.address[b] = placed.address;
    replay_.placement.segment[b] = placed.segment.value;
    replay_.placement.size[b] = placed.size;
    return true;
  }

  void free(std::size_t r) {
    const std::size_t b = block_of(r);
    const std::int32_t handle = handles_[b];
    if (handle == kNotAlive) {
      throw ConfigError("request " + std::to_string(r) + ", a free of block " + std::to_string(b),
                        "a block that is alive; build the requests with make_requests");
    }
    if (handle != kDropped) allocator_.free(BlockHandle{handle});
    handles_[b] = kNotAlive;
  }

  std::size_t block_of(std::size_t r) const {
    const auto block = static_cast<std::size_t>(requests_.block[r]);
    if (block >= handles_.size()) {
      throw ConfigError("request " + std::to_string(r) + " of block " + std::to_string(requests_.block[r]),
                        "a block below " + std::to_string(handles_.size()));
    }
    return block;
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
    while (replay_.event_request.size() < allocator_.events().count()) replay_.event_request.push_back(request);
  }

  static void raise(Peak& peak, Bytes bytes, std::int64_t request) {
    if (bytes > peak.bytes) peak = {bytes, request};
  }

  void name_blocks_of_state() {
    std::vector<std::int32_t> block_of_handle;
    for (std::size_t b = 0; b < handles_.size(); ++b) {
      if (handles_[b] < 0) continue;
      const auto handle = static_cast<std::size_t>(handles_[b]);
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
  std::vector<std::int32_t> handles_;  // BlockHandle of each replayed block
  Replay replay_;
};

}  // namespace

Replay replay(const Requests& requests, const ReplayOptions& options) {
  if (requests.kind.size() != requests.block.size() || requests.size_bytes.size() != requests.stream.size()) {
    throw ConfigError("request columns of " + std::to_string(requests.kind.size()) + " and " +
                          std::to_string(requests.block.size()) + " rows, block columns of " +
                          std::to_string(requests.size_bytes.size()) + " and " + std::to_string(requests.stream.size()),
                      "columns of equal length; build the requests with make_requests");
  }
  return Run(requests, options).run();
}

}  // namespace xmem::simulation
