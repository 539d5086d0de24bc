// Requests applied one by one to any framework allocator, with all that may be wrong with requests checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "allocators/concepts.hpp"
#include "base/error.hpp"
#include "sequence/request_sequence.hpp"
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
  static constexpr std::int32_t kNotAlive = -1;
  static constexpr std::int32_t kDropped = -2;  // failed; its free is to be skipped
  static constexpr std::int32_t kNothing = -3;  // took the alternative of 0 bytes; likewise

  RequestWalk(const Requests& requests, Allocator& allocator)
      : requests_(requests), allocator_(allocator), handles_(requests.size_bytes.size(), kNotAlive) {
    if (!requests.alternatives.list.empty()) fitting_.assign(requests.alternatives.begin.size() - 1, kNoneYet);
  }

  // False when the request ran out of memory.
  bool apply(std::size_t r) {
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
    }
    throw ConfigError("request " + std::to_string(r) + " of kind " + std::to_string(requests_.kind[r]),
                      "0 (allocation), 1 (free), 2 (emptied cache), 3 (use on another stream) or 4 to 11 (calls about "
                      "a private pool)");
  }

  // Handle of each block; below 0 when it is not alive.
  const std::vector<std::int32_t>& handles() const { return handles_; }

  // What was asked for last by an allocation that ran out of memory.
  Bytes last_tried_bytes(std::size_t r) const {
    const std::size_t b = block_of(r);
    return has_alternatives(b) ? requests_.alternatives.sizes_of(requests_.alternatives.list[b]).back()
                               : requests_.size_bytes[b];
  }

 private:
  static constexpr std::size_t kNoneYet = static_cast<std::size_t>(-1);

  bool allocate(std::size_t r) {
    const std::size_t b = block_of(r);
    const Bytes size = requests_.size_bytes[b];
    if (handles_[b] != kNotAlive || size <= 0 || size > kMaxBlockBytes) {
      throw ConfigError("request " + std::to_string(r) + ", an allocation of block " + std::to_string(b) + " of " +
                            std::to_string(size) + " bytes",
                        "a block that is not alive, of 1 to 2^44 bytes; build the requests with make_requests");
    }
    handles_[b] = has_alternatives(b) ? try_alternatives(b) : try_size(size, b);
    return handles_[b] != kDropped;
  }

  bool has_alternatives(std::size_t b) const {
    return !requests_.alternatives.list.empty() && requests_.alternatives.list[b] >= 0;
  }

  // The handle of a block of this size, kDropped where there is no memory for it.
  std::int32_t try_size(Bytes size, std::size_t b) {
    if constexpr (kKnowsOtherStreams) allocator_.process_events();
    const allocators::BlockHandle handle = allocator_.allocate(size, requests_.stream[b]);
    return handle.is_none() ? kDropped : handle.value;
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
        throw ConfigError("request " + std::to_string(r) + ", " + refused.value(), refused.expected());
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
      throw ConfigError("request " + std::to_string(r) + ", " + what + " of block " + std::to_string(b),
                        "a block that is alive; build the requests with make_requests");
    }
    return handles_[b];
  }

  std::size_t block_of(std::size_t r) const {
    const auto block = static_cast<std::size_t>(requests_.block[r]);
    if (block >= handles_.size()) {
      throw ConfigError("request " + std::to_string(r) + " of block " + std::to_string(requests_.block[r]),
                        "a block below " + std::to_string(handles_.size()));
    }
    return block;
  }

  const Requests& requests_;
  Allocator& allocator_;
  std::vector<std::int32_t> handles_;  // BlockHandle of each replayed block
  std::vector<std::size_t> fitting_;   // of each list of alternatives, the one that was taken last
};

}  // namespace xmem::simulation
