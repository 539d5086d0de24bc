#include "simulation/recording_start.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "allocators/caching/rounding.hpp"
#include "base/error.hpp"

namespace xmem::simulation {
namespace {

using allocators::AllocatorState;
using allocators::BlockState;
using allocators::Pool;

struct Mapped {  // a segment, or a mapped stretch of an expandable one
  Bytes size;
  std::int64_t stream;
  Pool pool;
  bool expandable;
  std::int32_t mempool;
};

struct Live {
  Bytes size;
  Bytes requested;
  BlockState state;
  bool exact;  // else its size is the least that it can be
};

class Rewind {
 public:
  Rewind(const Recording& recording, const allocators::AllocatorOptions& options, const AllocatorState& end)
      : recording_(recording), options_(options) {
    for (std::size_t s = 0; s < end.segment_address.size(); ++s) {
      segments_[end.segment_address[s]] = {end.segment_size[s], end.segment_stream[s],
                                           static_cast<Pool>(end.segment_pool[s]), end.segment_expandable[s] != 0,
                                           end.segment_mempool[s]};
    }
    for (std::size_t b = 0; b < end.block_address.size(); ++b) {
      const auto state = static_cast<BlockState>(end.block_state[b]);
      if (state == BlockState::kFree) continue;
      live_[end.block_address[b]] = {end.block_size[b], end.block_requested[b], state, true};
      const auto segment = segment_of(end.block_address[b]);
      if (segment != segments_.end()) compare_rounding(live_[end.block_address[b]], segment->second);
    }
    requests_are_recorded_ =
        std::ranges::find(recording.action, number(RecordedAction::kFreeRequested)) != recording.action.end();
  }

  AllocatorState run() {
    for (event_ = recording_.action.size(); event_-- > 0;) undo();
    return state();
  }

 private:
  static constexpr std::uint8_t number(RecordedAction action) { return static_cast<std::uint8_t>(action); }

  void undo() {
    const Bytes address = recording_.address[event_];
    const Bytes size = recording_.size[event_];
    switch (static_cast<RecordedAction>(recording_.action[event_])) {
      case RecordedAction::kAlloc:
        require(live_.erase(address) == 1, "allocates a block that the segments after it do not have");
        break;
      case RecordedAction::kFreeCompleted:
        bring_back(address, size);
        break;
      case RecordedAction::kFreeRequested:
        require(live_.contains(address), "frees a block that is neither freed nor waiting afterwards");
        live_[address].state = BlockState::kAllocated;
        break;
      case RecordedAction::kSegmentAlloc:
      case RecordedAction::kSegmentMap:
        remove_memory(address, size);
        break;
      case RecordedAction::kSegmentFree:
        require(is_unused(address, size), "gives back memory that is in use afterwards");
        segments_[address] = {size, recording_.stream[event_], pool_of_segment(size), false,
                              recording_.mempool[event_]};
        break;
      case RecordedAction::kSegmentUnmap:
        add_pages(address, size);
        break;
      case RecordedAction::kOutOfMemory:
      case RecordedAction::kOther:
        break;
    }
  }

  void bring_back(Bytes address, Bytes requested) {
    const auto segment = segment_of(address);
    require(segment != segments_.end(), "frees a block outside of every segment");
    const bool exact = segment->second.pool == Pool::kSmall || segment->second.expandable;
    const BlockState state = requests_are_recorded_ ? BlockState::kPendingFree : BlockState::kAllocated;
    const Bytes size = allocators::round_size(requested, options_);
    const auto [block, is_new] = live_.try_emplace(address, Live{size, requested, state, exact});
    require(is_new, "frees a block that is alive afterwards");
    settle_size(block, *segment);
    if (block != live_.begin() && std::prev(block)->first >= segment->first) settle_size(std::prev(block), *segment);
  }

  // No free block of a large segment is 1 MiB or less: such a gap is slack of the block before it.
  void settle_size(std::map<Bytes, Live>::iterator block, const std::pair<const Bytes, Mapped>& segment) {
    const Bytes segment_end = segment.first + segment.second.size;
    const auto next = std::next(block);
    const Bytes limit = next == live_.end() ? segment_end : std::min(segment_end, next->first);
    const Bytes gap = limit - (block->first + block->second.size);
    require(gap >= 0, "frees a block that overlaps another");
    if (block->second.exact || gap > allocators::kSmallSize) return;
    block->second.size += gap;
    block->second.exact = true;
  }

  void remove_memory(Bytes address, Bytes size) {
    const auto inside = live_.lower_bound(address);
    const bool reaches_in =
        inside != live_.begin() && std::prev(inside)->first + std::prev(inside)->second.size > address;
    require(!reaches_in && (inside == live_.end() || inside->first >= address + size),
            "asks for memory that was in use before");
    const auto found = segment_of(address);
    require(found != segments_.end() && address + size <= found->first + found->second.size,
            "asks for memory that the segments after it do not have");
    const Bytes begin = found->first;
    const Mapped whole = found->second;
    segments_.erase(found);
    const auto keep = [&](Bytes from, Bytes to) {
      if (to > from) segments_[from] = {to - from, whole.stream, whole.pool, whole.expandable, whole.mempool};
    };
    keep(begin, address);
    keep(address + size, begin + whole.size);
  }

  void add_pages(Bytes address, Bytes size) {
    require(is_unused(address, size), "gives back pages that are mapped afterwards");
    const std::int64_t stream = recording_.stream[event_];
    Mapped pages{size, stream, size % options_.large_segment == 0 ? Pool::kLarge : Pool::kSmall, true,
                 recording_.mempool[event_]};
    const auto belongs = [&](const Mapped& other) {
      return other.expandable && other.stream == stream && other.mempool == pages.mempool;
    };
    Bytes begin = address;
    const auto next = segments_.find(address + size);
    if (next != segments_.end() && belongs(next->second)) {
      pages.pool = next->second.pool;
      pages.size += next->second.size;
      segments_.erase(next);
    }
    const auto after = segments_.lower_bound(address);
    if (after != segments_.begin()) {
      const auto before = std::prev(after);
      const bool touches = before->first + before->second.size == address;
      if (touches && belongs(before->second)) {
        pages.pool = before->second.pool;
        pages.size += before->second.size;
        begin = before->first;
        segments_.erase(before);
      }
    }
    segments_[begin] = pages;
  }

  std::map<Bytes, Mapped>::iterator segment_of(Bytes address) {
    const auto after = segments_.upper_bound(address);
    if (after == segments_.begin()) return segments_.end();
    const auto found = std::prev(after);
    return address < found->first + found->second.size ? found : segments_.end();
  }

  bool is_unused(Bytes address, Bytes size) const {
    const auto after = segments_.lower_bound(address);
    if (after != segments_.end() && after->first < address + size) return false;
    return after == segments_.begin() || std::prev(after)->first + std::prev(after)->second.size <= address;
  }

  static Pool pool_of_segment(Bytes size) { return size == allocators::kSmallBuffer ? Pool::kSmall : Pool::kLarge; }

  AllocatorState state() const {
    AllocatorState state;
    for (const auto& [begin, mapped] : segments_) {
      state.segment_id.push_back(static_cast<std::int32_t>(state.segment_address.size()));
      state.segment_address.push_back(begin);
      state.segment_size.push_back(mapped.size);
      state.segment_stream.push_back(mapped.stream);
      state.segment_pool.push_back(static_cast<std::uint8_t>(mapped.pool));
      state.segment_expandable.push_back(mapped.expandable ? 1 : 0);
      state.segment_mempool.push_back(mapped.mempool);
      Bytes at = begin;
      const auto fill_to = [&](Bytes to) {
        if (to > at) add_block(state, at, {to - at, 0, BlockState::kFree, true});
        at = to;
      };
      for (auto block = live_.lower_bound(begin); block != live_.end() && block->first < begin + mapped.size; ++block) {
        fill_to(block->first);
        add_block(state, at, block->second);
        at += block->second.size;
      }
      fill_to(begin + mapped.size);
    }
    return state;
  }

  static void add_block(AllocatorState& state, Bytes address, const Live& block) {
    state.block_segment.push_back(state.segment_id.back());
    state.block_address.push_back(address);
    state.block_size.push_back(block.size);
    state.block_requested.push_back(block.requested);
    state.block_state.push_back(static_cast<std::uint8_t>(block.state));
    state.block_handle.push_back(-1);
  }

  void require(bool holds, const char* what) const {
    if (holds) return;
    throw TraceError(
        std::string("the trace does not lead to the segments of the snapshot: this event ") + what + "; " + advice_, -1,
        static_cast<std::int64_t>(event_));
  }

  // Blocks that the recorded run had show whether it rounded requests in the same way.
  void compare_rounding(const Live& block, const Mapped& segment) {
    if (block.requested <= 0) return;
    const Bytes size = allocators::round_size(block.requested, options_);
    const bool is_alike = block.size == size ||
                          (block.size > size && !allocators::should_split(block.size, size, segment.pool, options_));
    if (is_alike) return;
    advice_ = "these settings round a request of " + std::to_string(block.requested) + " bytes to " +
              std::to_string(size) + ", but its block in the snapshot has " + std::to_string(block.size) +
              ": give the settings of the recorded run with --alloc-conf";
  }

  const Recording& recording_;
  const allocators::AllocatorOptions& options_;
  std::map<Bytes, Mapped> segments_;  // by address
  std::map<Bytes, Live> live_;        // by address
  bool requests_are_recorded_ = true;
  std::size_t event_ = 0;
  std::string advice_ = "take another snapshot, with a larger max_entries";
};

}  // namespace

AllocatorState state_before(const Recording& recording, const allocators::AllocatorOptions& options,
                            const AllocatorState& end) {
  check_recording(recording);
  return Rewind(recording, options, end).run();
}

}  // namespace xmem::simulation
