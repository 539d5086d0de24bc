// A recorded memory trace of a real GPU run, driven through the simulator and compared event by event.
//
// The recording's own requests (alloc, free_requested, free_completed, emptied caches) go in; the device answers what
// the recording says it answered. Everything else must come out as recorded: which block serves a request, when
// segments are asked for and given back, and in which order. An address that agrees proves best fit, tie-break, split
// and join; a segment size proves rounding; no segment event proves reuse.
//
// A trace tells which private pool served a request, not who uses the pools nor when requests began to go to one. What
// follows from the events is taken from them: a pool of which a flush gives memory back has no users, and a request in
// a private pool that gives nothing back may not flush.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "allocators/caching/caching_allocator.hpp"

namespace xmem::simulation {

enum class RecordedAction : std::uint8_t {
  kAlloc = 0,
  kFreeRequested = 1,
  kFreeCompleted = 2,
  kSegmentAlloc = 3,
  kSegmentFree = 4,
  kSegmentMap = 5,
  kSegmentUnmap = 6,
  kOutOfMemory = 7,
  kOther = 8,  // says nothing about memory
};

// What PyTorch records for an entry of the allocator's own log.
RecordedAction recorded(allocators::Action action);

struct Recording {
  std::span<const std::uint8_t> action;  // RecordedAction
  std::span<const Bytes> address;        // of an out of memory the free bytes of the device
  std::span<const Bytes> size;           // requested for blocks, rounded for an out of memory
  std::span<const std::int64_t> stream;
  std::span<const std::int32_t> mempool;  // allocators::MempoolId
};

// Throws TraceError, with the event, for sizes and addresses that no allocator hands out, and ConfigError for columns
// of different length. What follows makes sums of them.
void check_recording(const Recording& recording);

// What the simulator did in place of a recorded event; action kOther: nothing.
struct Difference {
  std::int64_t event = -1;  // index of the first recorded event that disagrees
  RecordedAction action = RecordedAction::kOther;
  Bytes address = -1;
  Bytes size = -1;
  std::int64_t stream = -1;
};

struct RecordingReplay {
  std::optional<Difference> difference;  // none: every event agreed
  std::vector<Bytes> reserved;           // after each event that was reached
  std::vector<Bytes> allocated;
  allocators::Statistics statistics;
  allocators::AllocatorState state;  // at the end, or after the call that disagreed
};

// `start`: the allocator before the first event, of which check_state holds. `capacity`: total memory of the device,
// the size of the address ranges of expandable segments. Throws as check_recording does, and ConfigError for refused
// options.
RecordingReplay replay_recording(const Recording& recording, const allocators::AllocatorOptions& options,
                                 const allocators::AllocatorState& start, Bytes capacity);

}  // namespace xmem::simulation
