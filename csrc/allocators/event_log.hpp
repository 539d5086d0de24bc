// What an allocator did besides handing blocks out and taking them back, as columns in order of occurrence.
//
// These are the rare entries of PyTorch's memory trace. An `alloc`, a `free_requested`, and the `free_completed` that
// follows at once say nothing that the caller does not know; they are not logged.
#pragma once

#include <cstdint>
#include <vector>

#include "allocators/ids.hpp"
#include "base/units.hpp"

namespace xmem::allocators {

enum class Action : std::uint8_t {
  kSegmentAlloc = 0,
  kSegmentFree = 1,
  kSegmentMap = 2,
  kSegmentUnmap = 3,
  kFreeCompleted = 4,  // of a free that had waited for another stream; size is the requested one
  kOutOfMemory = 5,    // address is the device's free bytes, size the rounded request
};

struct EventLog {
  std::vector<Action> action;
  std::vector<Bytes> address;
  std::vector<Bytes> size;
  std::vector<StreamHandle> stream;
  std::vector<MempoolId> mempool;

  std::size_t count() const { return action.size(); }
  void append(Action what, Bytes where, Bytes how_much, StreamHandle on, MempoolId in) {
    action.push_back(what);
    address.push_back(where);
    size.push_back(how_much);
    stream.push_back(on);
    mempool.push_back(in);
  }
};

}  // namespace xmem::allocators
