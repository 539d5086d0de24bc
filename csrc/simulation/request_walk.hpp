// Requests applied one by one to any framework allocator, with all that may be wrong with requests checked.
#pragma once

#include <cstdint>
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
  static constexpr std::int32_t kNotAlive = -1;
  static constexpr std::int32_t kDropped = -2;  // failed; its free is to be skipped

  RequestWalk(const Requests& requests, Allocator& allocator)
      : requests_(requests), allocator_(allocator), handles_(requests.size_bytes.size(), kNotAlive) {}

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
    }
    throw ConfigError("request " + std::to_string(r) + " of kind " + std::to_string(requests_.kind[r]),
                      "0 (allocation), 1 (free) or 2 (emptied cache)");
  }

  // Handle of each block; below 0 when it is not alive.
  const std::vector<std::int32_t>& handles() const { return handles_; }

 private:
  bool allocate(std::size_t r) {
    const std::size_t b = block_of(r);
    const Bytes size = requests_.size_bytes[b];
    if (handles_[b] != kNotAlive || size <= 0 || size > sequence::kMaxBlockBytes) {
      throw ConfigError("request " + std::to_string(r) + ", an allocation of block " + std::to_string(b) + " of " +
                            std::to_string(size) + " bytes",
                        "a block that is not alive, of 1 to 2^44 bytes; build the requests with make_requests");
    }
    const allocators::BlockHandle handle = allocator_.allocate(size, requests_.stream[b]);
    handles_[b] = handle.is_none() ? kDropped : handle.value;
    return !handle.is_none();
  }

  void free(std::size_t r) {
    const std::size_t b = block_of(r);
    const std::int32_t handle = handles_[b];
    if (handle == kNotAlive) {
      throw ConfigError("request " + std::to_string(r) + ", a free of block " + std::to_string(b),
                        "a block that is alive; build the requests with make_requests");
    }
    if (handle != kDropped) allocator_.free(allocators::BlockHandle{handle});
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

  const Requests& requests_;
  Allocator& allocator_;
  std::vector<std::int32_t> handles_;  // BlockHandle of each replayed block
};

}  // namespace xmem::simulation
