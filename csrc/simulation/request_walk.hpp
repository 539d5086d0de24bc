// Requests applied one by one to any framework allocator, with all that may be wrong with requests checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "allocators/concepts.hpp"
#include "base/error.hpp"
#include "sequence/request_sequence.hpp"
#include "simulation/pool_checkpoints.hpp"
#include "simulation/requests.hpp"

namespace xmem::simulation {

template <allocators::FrameworkAllocator Allocator>
class RequestWalk {
 public:
  // Whether a block that another stream uses waits for it. The other streams are taken to be done by the next
  // allocation, where PyTorch looks (process_events): they are on a device that computes nothing.
  static constexpr bool kKnowsOtherStreams = requires(Allocator allocator, allocators::BlockHandle block) {
    allocator.record_stream(block);
    allocator.process_events();
  };
  // Whether it has private pools; requests about them mean nothing to the others.
  static constexpr bool kKnowsPools = requires(Allocator allocator) { allocator.begin_pool(1); };
  // Whether a pool can be put back to a checkpoint; else what was made for that is an allocation like any other.
  static constexpr bool kKnowsCheckpoints = requires(Allocator allocator) { allocator.checkpoint_pool(1); };
  static constexpr std::int32_t kNotAlive = -1;
  static constexpr std::int32_t kDropped = -2;  // failed; its free is to be skipped
  static constexpr std::int32_t kNothing = -3;  // took the alternative of 0 bytes; likewise
  static constexpr std::int32_t kAwaited = -4;  // waits for its pool to be put back to a checkpoint

  RequestWalk(const Requests& requests, Allocator& allocator)
      : requests_(requests), allocator_(allocator), handles_(requests.size_bytes.size(), kNotAlive) {
    if (!requests.alternatives.list.empty()) fitting_.assign(requests.alternatives.begin.size() - 1, kNoneYet);
  }

  // False when the request ran out of memory.
  bool apply(std::size_t r) {
    settled_.clear();
    switch (static_cast<sequence::RequestKind>(requests_.kind[r])) {
      case sequence::RequestKind::kAlloc:
        return allocate(r);
      case sequence::RequestKind::kFree:
        free(r);
        return true;
      case sequence::RequestKind::kEmptyCache:
        allocator_.empty_cache();
        return true;
      case sequence::RequestKind::kRecordStream:
        record_stream(r);
        return true;
      case sequence::RequestKind::kBeginPool:
      case sequence::RequestKind::kBeginCapture:
      case sequence::RequestKind::kEndPool:
      case sequence::RequestKind::kReleasePool:
      case sequence::RequestKind::kRetainPool:
      case sequence::RequestKind::kEmptyPool:
      case sequence::RequestKind::kUsePoolOnOom:
      case sequence::RequestKind::kForbidPoolSplit:
        call_pool(r);
        return true;
      case sequence::RequestKind::kCheckpointPool:
        if constexpr (kKnowsCheckpoints) checkpoints_.keep(requests_.block[r], handles_, allocator_);
        return true;
      case sequence::RequestKind::kRestoreSegment:
      case sequence::RequestKind::kRestorePool:
        return restore(r);
    }
    throw ConfigError(
        "request " + std::to_string(r) + " has the unknown kind " + std::to_string(requests_.kind[r]),
        "use 0 (allocation), 1 (free), 2 (emptied cache), 3 (use on another stream) or 4 to 14 (calls about "
        "a private pool)");
  }

  // Handle of each block; below 0 when it is not alive.
  const std::vector<std::int32_t>& handles() const { return handles_; }

  // Blocks that got their memory when the last request put a pool back to a checkpoint.
  const std::vector<std::size_t>& settled() const { return settled_; }

  // What was asked for last by an allocation that ran out of memory.
  Bytes last_tried_bytes() const { return last_tried_; }

 private:
  static constexpr std::size_t kNoneYet = static_cast<std::size_t>(-1);

  bool allocate(std::size_t r) {
    const std::size_t b = block_of(r);
    const Bytes size = requests_.size_bytes[b];
    if (handles_[b] != kNotAlive || size <= 0 || size > kMaxBlockBytes) {
      throw ConfigError("request " + std::to_string(r) + " cannot allocate block " + std::to_string(b) + " of " +
                            std::to_string(size) + " bytes",
                        "use a block that is not alive, of 1 to 2^44 bytes; build the requests with make_requests");
    }
    if (place_of(b) != kRestoresNothing && kKnowsCheckpoints) {
      awaited_.push_back(b);
      handles_[b] = kAwaited;
      return true;
    }
    if (place_of(b) == kFreeAtCheckpoint) {
      handles_[b] = kNothing;
      return true;
    }
    handles_[b] = has_alternatives(b) ? try_alternatives(b) : try_size(size, b);
    return handles_[b] != kDropped;
  }

  std::int32_t place_of(std::size_t b) const {
    return requests_.restores.empty() ? kRestoresNothing : requests_.restores[b];
  }

  // setCheckpointPoolState: blocks that lived at the checkpoint live again, in their places. Where those cannot be
  // had, as in a run that was changed, they are allocated as others are.
  bool restore(std::size_t r) {
    if constexpr (!kKnowsCheckpoints) return true;
    const bool all = static_cast<sequence::RequestKind>(requests_.kind[r]) == sequence::RequestKind::kRestorePool;
    if constexpr (kKnowsCheckpoints) {
      checkpoints_.restore(requests_.block[r], all, awaited_, requests_.restores, requests_.size_bytes, handles_,
                           allocator_);
    }
    bool served = true;
    for (const std::size_t b : awaited_) {
      if (handles_[b] == kAwaited) {
        handles_[b] = place_of(b) == kFreeAtCheckpoint ? kNothing : try_size(requests_.size_bytes[b], b);
        served = served && handles_[b] != kDropped;
      }
      settled_.push_back(b);
    }
    awaited_.clear();
    return served;
  }

  bool has_alternatives(std::size_t b) const {
    return !requests_.alternatives.list.empty() && requests_.alternatives.list[b] >= 0;
  }

  // The handle of a block of this size, kDropped where there is no memory for it.
  std::int32_t try_size(Bytes size, std::size_t b) {
    if constexpr (kKnowsOtherStreams) allocator_.process_events();
    last_tried_ = size;
    const allocators::BlockHandle handle = allocate_in_pool(size, b);
    return handle.is_none() ? kDropped : handle.value;
  }

  allocators::BlockHandle allocate_in_pool(Bytes size, std::size_t b) {
    if constexpr (kKnowsPools) {
      if (!requests_.mempool.empty() && requests_.mempool[b] >= 0) {
        return allocator_.allocate_in(requests_.mempool[b], size, requests_.stream[b]);
      }
    }
    return allocator_.allocate(size, requests_.stream[b]);
  }

  std::int32_t try_alternatives(std::size_t b) {
    const std::int32_t list = requests_.alternatives.list[b];
    const std::span<const Bytes> sizes = requests_.alternatives.sizes_of(list);
    const auto attempt = [&](std::size_t a) { return sizes[a] == 0 ? kNothing : try_size(sizes[a], b); };
    std::size_t& fitting = fitting_[static_cast<std::size_t>(list)];
    if (fitting != kNoneYet) {
      const std::int32_t handle = attempt(fitting);
      if (handle != kDropped) return handle;
    }
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      const std::int32_t handle = attempt(a);
      if (handle == kDropped) continue;
      fitting = a;
      return handle;
    }
    return kDropped;
  }

  void free(std::size_t r) {
    const std::int32_t handle = alive(r, "a free");
    if (handle >= 0) allocator_.free(allocators::BlockHandle{handle});
    if (handle == kAwaited) std::erase(awaited_, block_of(r));
    handles_[block_of(r)] = kNotAlive;
  }

  void record_stream(std::size_t r) {
    const std::int32_t handle = alive(r, "a use");
    if constexpr (kKnowsOtherStreams) {
      if (handle >= 0) allocator_.record_stream(allocators::BlockHandle{handle});
    }
  }

  void call_pool(std::size_t r) {
    if constexpr (kKnowsPools) {
      const allocators::MempoolId pool = requests_.block[r];
      try {
        call_pool(static_cast<sequence::RequestKind>(requests_.kind[r]), pool);
      } catch (const ConfigError& refused) {
        throw ConfigError("request " + std::to_string(r) + ": " + refused.message(), refused.hint());
      }
    }
  }

  void call_pool(sequence::RequestKind kind, allocators::MempoolId pool) {
    switch (kind) {
      case sequence::RequestKind::kBeginPool:
        return allocator_.begin_pool(pool);
      case sequence::RequestKind::kBeginCapture:
        return allocator_.begin_capture(pool);
      case sequence::RequestKind::kEndPool:
        return allocator_.end_pool(pool);
      case sequence::RequestKind::kReleasePool:
        return allocator_.release_pool(pool);
      case sequence::RequestKind::kRetainPool:
        return allocator_.retain_pool(pool);
      case sequence::RequestKind::kEmptyPool:
        return allocator_.empty_pool(pool);
      case sequence::RequestKind::kUsePoolOnOom:
        return allocator_.use_pool_on_oom(pool);
      case sequence::RequestKind::kForbidPoolSplit:
        return allocator_.forbid_split_of_pool(pool);
      default:
        return;
    }
  }

  // Handle of the block that the request is about.
  std::int32_t alive(std::size_t r, const char* what) const {
    const std::size_t b = block_of(r);
    if (handles_[b] == kNotAlive) {
      throw ConfigError(
          "request " + std::to_string(r) + " is " + what + " of block " + std::to_string(b) + ", which is not alive",
          "build the requests with make_requests");
    }
    return handles_[b];
  }

  std::size_t block_of(std::size_t r) const {
    const auto block = static_cast<std::size_t>(requests_.block[r]);
    if (block >= handles_.size()) {
      throw ConfigError("request " + std::to_string(r) + " has the unknown block " + std::to_string(requests_.block[r]),
                        "use a block below " + std::to_string(handles_.size()));
    }
    return block;
  }

  const Requests& requests_;
  Allocator& allocator_;
  std::vector<std::int32_t> handles_;  // BlockHandle of each replayed block
  std::vector<std::size_t> awaited_;   // blocks that were asked for since a pool began to be put back
  std::vector<std::size_t> settled_;
  PoolCheckpoints checkpoints_;
  Bytes last_tried_ = 0;
  std::vector<std::size_t> fitting_;  // of each list of alternatives, the one that was taken last
};

}  // namespace xmem::simulation
