// A request sequence through PyTorch's caching allocator over a device of a given capacity.
//
// Everything comes back as columns: gauges after every request, where each block was placed, what the allocator asked
// of the device, counters, and the segments and blocks at the end. Out of memory is a result, not an error.
//
// Cost: at least 10 million requests a second on one core; 32 bytes a request and 20 a block for the columns.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "allocators/caching/caching_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "simulation/requests.hpp"

namespace xmem::simulation {

enum class OnOutOfMemory : std::uint8_t {
  kStop = 0,  // the failed request is the last one
  kDrop = 1,  // go on without the block
};

struct ReplayOptions {
  allocators::AllocatorOptions allocator;
  allocators::DeviceProperties device;
  OnOutOfMemory on_out_of_memory = OnOutOfMemory::kStop;
  std::optional<std::int64_t> until;  // index of the last request to replay
  bool every_counter = false;         // record Replay::counters; 0.9 KiB a request
};

struct Timeline {  // one row a request, the state after it
  std::vector<Bytes> allocated;
  std::vector<Bytes> active;
  std::vector<Bytes> reserved;
  std::vector<Bytes> requested;
};

struct Peak {
  Bytes bytes = 0;
  std::int64_t request = -1;  // the first request that reached it
};

// PyTorch's peaks: what a gauge reached inside a request counts, even where it fell again before the end of it.
struct Peaks {
  Peak allocated;
  Peak active;
  Peak reserved;
  Peak requested;
};

struct Placement {  // one row a block; -1 where it was never allocated
  std::vector<Bytes> address;
  std::vector<std::int32_t> segment;
  std::vector<Bytes> size;  // rounded, with the slack of an unsplit block; 0 where it took the alternative of 0 bytes
};

struct FailedRequest {
  std::int64_t request = -1;
  Bytes requested_bytes = 0;
  Bytes rounded_bytes = 0;
  Bytes device_free_bytes = 0;
};

struct Replay {
  Timeline timeline;
  std::vector<std::int64_t> counters;  // where asked for: a row a request, a column for each of counter_names()
  Peaks peaks;
  Placement placement;
  allocators::Statistics statistics;
  std::map<allocators::MempoolId, allocators::PooledStat> reserved_by_private_pools;
  allocators::EventLog events;
  std::vector<std::int64_t> event_request;             // of each event
  std::vector<FailedRequest> failures;                 // at most one when the replay stops
  allocators::AllocatorState state;                    // at the end
  std::vector<allocators::MempoolId> segment_mempool;  // of each segment that there ever was, by SegmentId
  std::vector<std::int32_t> state_block;               // of each block of the state: the replayed block, -1 when free
};

// Throws ConfigError when an option is refused, or when the requests do not fit together (columns of different
// length, an unknown block, a block that is allocated while alive or freed while not).
Replay replay(const Requests& requests, const ReplayOptions& options);

}  // namespace xmem::simulation
