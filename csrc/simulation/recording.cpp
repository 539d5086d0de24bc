#include "simulation/recording.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "allocators/caching/rounding.hpp"
#include "base/error.hpp"

namespace xmem::simulation {
namespace {

using allocators::Action;
using allocators::BlockHandle;
using allocators::CachingAllocator;

bool gives_back(RecordedAction action) {
  return action == RecordedAction::kSegmentFree || action == RecordedAction::kSegmentUnmap;
}

bool asks_device(RecordedAction action) {
  return action == RecordedAction::kSegmentAlloc || action == RecordedAction::kSegmentMap || gives_back(action);
}

// Answers what the recording answered during one call of the allocator: an event that stands next succeeds, unless it
// hands out memory twice.
class RecordedDevice {
 public:
  RecordedDevice(const Recording& recording, Bytes capacity, const allocators::AllocatorState& start)
      : recording_(recording), capacity_(capacity) {
    for (std::size_t s = 0; s < start.segment_address.size(); ++s) {
      in_use_[start.segment_address[s]] = start.segment_address[s] + start.segment_size[s];
    }
  }

  // The events of the next call are [begin, end).
  void set_call(std::size_t begin, std::size_t end, Bytes free_bytes) {
    next_ = begin;
    end_ = end;
    free_bytes_ = free_bytes;
  }

  std::optional<Bytes> allocate(Bytes size) {
    if (!is_next(RecordedAction::kSegmentAlloc) || recording_.size[next_] != size) return std::nullopt;
    if (!take(recording_.address[next_], size)) return std::nullopt;
    return recording_.address[next_++];
  }
  void release(Bytes address, Bytes size) {
    give_back(address, size);
    if (is_next(RecordedAction::kSegmentFree)) ++next_;
  }
  // A range is reserved before its first page is mapped, maybe after a flush that finds memory for it. Where this call
  // maps nothing into it, its place is not recorded.
  Bytes reserve(Bytes) {
    const auto call = recording_.action.subspan(next_, end_ - next_);
    const auto mapped = std::ranges::find(call, static_cast<std::uint8_t>(RecordedAction::kSegmentMap));
    return mapped == call.end() ? 0 : recording_.address[next_ + static_cast<std::size_t>(mapped - call.begin())];
  }
  void unreserve(Bytes, Bytes) {}
  bool map(Bytes address, Bytes size) {
    const bool granted = is_next(RecordedAction::kSegmentMap) && recording_.size[next_] == size &&
                         recording_.address[next_] == address && take(address, size);
    if (granted) ++next_;
    return granted;
  }
  void unmap(Bytes address, Bytes size) {
    give_back(address, size);
    if (is_next(RecordedAction::kSegmentUnmap)) ++next_;
  }
  Bytes free_bytes() const { return free_bytes_; }
  Bytes total_bytes() const { return capacity_; }

 private:
  bool is_next(RecordedAction action) {
    while (next_ < end_ && !asks_device(static_cast<RecordedAction>(recording_.action[next_]))) ++next_;
    return next_ < end_ && static_cast<RecordedAction>(recording_.action[next_]) == action;
  }

  bool take(Bytes address, Bytes size) {
    const auto after = in_use_.lower_bound(address);
    if (after != in_use_.end() && after->first < address + size) return false;
    if (after != in_use_.begin() && std::prev(after)->second > address) return false;
    in_use_[address] = address + size;
    return true;
  }

  // What was taken at once may go back in parts.
  void give_back(Bytes address, Bytes size) {
    auto at = in_use_.upper_bound(address);
    if (at != in_use_.begin()) --at;
    while (at != in_use_.end() && at->first < address + size) {
      const auto [begin, end] = *at;
      at = in_use_.erase(at);
      if (begin < address) in_use_[begin] = std::min(end, address);
      if (end > address + size) in_use_[std::max(begin, address + size)] = end;
    }
  }

  const Recording& recording_;
  Bytes capacity_;
  std::map<Bytes, Bytes> in_use_;  // begins to ends of ranges
  std::size_t next_ = 0;
  std::size_t end_ = 0;
  Bytes free_bytes_ = 0;
};
static_assert(allocators::DeviceMemory<RecordedDevice>);

class Driver {
 public:
  Driver(const Recording& recording, const allocators::AllocatorOptions& options,
         const allocators::AllocatorState& start, Bytes capacity)
      : recording_(recording),
        device_(recording, capacity, start),
        allocator_(options, allocators::DeviceReference(device_)) {
    const std::vector<BlockHandle> handles = allocator_.restore(start);
    for (std::size_t b = 0; b < handles.size(); ++b) {
      if (!handles[b].is_none()) live_.emplace(start.block_address[b], handles[b]);
    }
  }

  RecordingReplay run() {
    reserved_ = allocator_.reserved_bytes();
    while (next_ < recording_.action.size() && !result_.difference) {
      switch (action(next_)) {
        case RecordedAction::kOther:
          agree();
          break;
        case RecordedAction::kFreeRequested:
          free();
          break;
        case RecordedAction::kFreeCompleted:
          complete();
          break;
        default:
          call_with_device_events();
      }
      if (!result_.difference && reserved_ != allocator_.reserved_bytes()) {
        throw std::logic_error("caching allocator: reserved bytes differ from the events that explain them");
      }
    }
    result_.statistics = allocator_.statistics();
    result_.state = allocator_.state();
    return std::move(result_);
  }

 private:
  RecordedAction action(std::size_t event) const { return static_cast<RecordedAction>(recording_.action[event]); }

  // The gauge of the allocator is that after the whole call; the events inside it tell how it came there.
  void agree() {
    if (action(next_) == RecordedAction::kSegmentAlloc || action(next_) == RecordedAction::kSegmentMap) {
      reserved_ += recording_.size[next_];
    } else if (gives_back(action(next_))) {
      reserved_ -= recording_.size[next_];
    }
    result_.reserved.push_back(reserved_);
    result_.allocated.push_back(allocator_.allocated_bytes());
    ++next_;
  }

  void skip_others() {
    while (next_ < recording_.action.size() && action(next_) == RecordedAction::kOther) agree();
  }

  // The simulator did this: the next recorded event must be it.
  void expect(RecordedAction what, Bytes address, Bytes size, std::int64_t stream) {
    if (result_.difference) return;
    skip_others();
    const bool same = next_ < recording_.action.size() && action(next_) == what &&
                      recording_.address[next_] == address && recording_.size[next_] == size &&
                      recording_.stream[next_] == stream;
    if (same) return agree();
    result_.difference = Difference{static_cast<std::int64_t>(next_), what, address, size, stream};
  }

  // The simulator did nothing that the next recorded event could be.
  void differ_by_silence() { result_.difference = Difference{static_cast<std::int64_t>(next_)}; }

  void expect_logged() {
    const allocators::EventLog& log = allocator_.events();
    for (; seen_ < log.count(); ++seen_) {
      if (log.action[seen_] == Action::kFreeCompleted) live_.erase(log.address[seen_]);
      expect(recorded(log.action[seen_]), log.address[seen_], log.size[seen_], log.stream[seen_]);
    }
  }

  void free() {
    const auto found = live_.find(recording_.address[next_]);
    if (found == live_.end()) return differ_by_silence();
    const BlockHandle block = found->second;
    const allocators::Block before = allocator_.block(block);
    if (before.state != allocators::BlockState::kAllocated) return differ_by_silence();
    const std::int64_t stream = allocator_.stream_of(block);
    const bool at_once = completes_at_once();
    if (!at_once) allocator_.record_stream(block, stream + 1);  // any other stream defers it
    allocator_.free(block);
    expect(RecordedAction::kFreeRequested, before.address, before.requested, stream);
    if (!at_once) return;
    expect(RecordedAction::kFreeCompleted, before.address, before.requested, stream);
    live_.erase(found);
  }

  bool completes_at_once() const {
    std::size_t after = next_ + 1;
    while (after < recording_.action.size() && action(after) == RecordedAction::kOther) ++after;
    return after < recording_.action.size() && action(after) == RecordedAction::kFreeCompleted &&
           recording_.address[after] == recording_.address[next_];
  }

  // A free that had waited; or, where requests of frees were not recorded, all there is of a free.
  void complete() {
    const auto found = live_.find(recording_.address[next_]);
    if (found == live_.end()) return differ_by_silence();
    const BlockHandle block = found->second;
    const allocators::Block before = allocator_.block(block);
    if (before.state == allocators::BlockState::kPendingFree) {
      allocator_.complete(block);
      expect_logged();
    } else {
      live_.erase(found);
      const std::int64_t stream = allocator_.stream_of(block);
      allocator_.free(block);
      expect(RecordedAction::kFreeCompleted, before.address, before.requested, stream);
    }
  }

  // An allocation with what it asks of the device, or an emptied cache.
  void call_with_device_events() {
    const std::size_t first = next_;
    std::size_t end = first;
    bool gave_back = false;
    while (end < recording_.action.size() &&
           (asks_device(action(end)) || action(end) == RecordedAction::kOther || is_flushed(end))) {
      gave_back = gave_back || gives_back(action(end));
      ++end;
    }
    const bool is_request = end < recording_.action.size() &&
                            (action(end) == RecordedAction::kAlloc || action(end) == RecordedAction::kOutOfMemory);
    empty_pools_that_nobody_uses(end, is_request ? recording_.mempool[end] : allocators::kDefaultMempool);
    if (result_.difference || (!is_request && next_ == end)) return;
    device_.set_call(next_, end, 0);
    abandon_pools_that_give_back(end);
    if (!is_request) {
      const std::size_t before = next_;
      allocator_.empty_cache();
      expect_logged();
      if (next_ == before && !result_.difference) differ_by_silence();
      return;
    }
    const bool failed = action(end) == RecordedAction::kOutOfMemory;
    device_.set_call(next_, end, failed ? recording_.address[end] : 0);
    const std::int32_t pool = recording_.mempool[end];
    // A miss that flushes, or an emptied cache and then an allocation: alike, unless the cache would have served it.
    if (gave_back && allocator_.is_cached(recording_.size[end], recording_.stream[end], pool)) allocator_.empty_cache();
    allocate(recording_.size[end], recording_.stream[end], pool, gave_back || pool == allocators::kDefaultMempool);
  }

  // Releases are not recorded, but memory of a pool goes back only when it has no users. In a flush that of the default
  // pool comes first: where it does not, pools are given back one by one, as when a MemPool is deleted.
  void empty_pools_that_nobody_uses(std::size_t end, std::int32_t serving) {
    for (skip_others(); next_ < end && gives_back(action(next_)) && !result_.difference; skip_others()) {
      const std::int32_t pool = recording_.mempool[next_];
      if (pool == allocators::kDefaultMempool || pool == serving) return;
      const std::size_t before = next_;
      device_.set_call(next_, end, 0);
      allocator_.abandon_pool(pool);
      allocator_.empty_pool(pool);
      expect_logged();
      if (next_ == before && !result_.difference) differ_by_silence();
    }
  }

  void abandon_pools_that_give_back(std::size_t end) {
    for (std::size_t event = next_; event < end; ++event) {
      const std::int32_t pool = recording_.mempool[event];
      if (gives_back(action(event)) && pool != allocators::kDefaultMempool) allocator_.abandon_pool(pool);
    }
  }

  // A free that had waited and completes in the middle of a flush.
  bool is_flushed(std::size_t event) const {
    if (action(event) != RecordedAction::kFreeCompleted || event == next_) return false;
    const auto found = live_.find(recording_.address[event]);
    return found != live_.end() && allocator_.block(found->second).state == allocators::BlockState::kPendingFree;
  }

  void allocate(Bytes size, std::int64_t stream, std::int32_t pool, bool flushes) {
    const BlockHandle block = allocator_.allocate_recorded(size, stream, pool, flushes);
    expect_logged();
    if (block.is_none()) return;
    const allocators::Block& placed = allocator_.block(block);
    live_.insert_or_assign(placed.address, block);
    expect(RecordedAction::kAlloc, placed.address, size, stream);
  }

  const Recording& recording_;
  RecordedDevice device_;
  CachingAllocator allocator_;
  std::unordered_map<Bytes, BlockHandle> live_;  // allocated and waiting blocks by address; looked up, never listed
  std::size_t next_ = 0;
  std::size_t seen_ = 0;  // of the allocator's log
  Bytes reserved_ = 0;    // after the last event that agreed
  RecordingReplay result_;
};

}  // namespace

RecordedAction recorded(allocators::Action action) {
  switch (action) {
    case Action::kSegmentAlloc:
      return RecordedAction::kSegmentAlloc;
    case Action::kSegmentFree:
      return RecordedAction::kSegmentFree;
    case Action::kSegmentMap:
      return RecordedAction::kSegmentMap;
    case Action::kSegmentUnmap:
      return RecordedAction::kSegmentUnmap;
    case Action::kFreeCompleted:
      return RecordedAction::kFreeCompleted;
    case Action::kOutOfMemory:
      return RecordedAction::kOutOfMemory;
  }
  return RecordedAction::kOther;
}

void check_recording(const Recording& recording) {
  const std::size_t count = recording.action.size();
  if (recording.address.size() != count || recording.size.size() != count || recording.stream.size() != count ||
      recording.mempool.size() != count) {
    throw ConfigError("the columns have different lengths",
                      "give one action, address, size, stream and pool for each event");
  }
  for (std::size_t event = 0; event < count; ++event) {
    const auto action = static_cast<RecordedAction>(recording.action[event]);
    if (action == RecordedAction::kOther) continue;
    const Bytes size = recording.size[event];
    const Bytes address = recording.address[event];
    const bool is_whole = !asks_device(action) || size % allocators::kMinBlockSize == 0;
    const Bytes largest = action == RecordedAction::kOutOfMemory ? kMaxAddress : kMaxBlockBytes;
    const bool is_possible = size > 0 && size <= largest && is_whole && address >= 0 && address <= kMaxAddress;
    if (is_possible && action < RecordedAction::kOther) continue;
    throw TraceError("the allocator of PyTorch never has a size of " + std::to_string(size) + " bytes at address " +
                         std::to_string(address) + "; take another snapshot, of a real run",
                     -1, static_cast<std::int64_t>(event));
  }
}

RecordingReplay replay_recording(const Recording& recording, const allocators::AllocatorOptions& options,
                                 const allocators::AllocatorState& start, Bytes capacity) {
  check_recording(recording);
  return Driver(recording, options, start, capacity).run();
}

}  // namespace xmem::simulation
