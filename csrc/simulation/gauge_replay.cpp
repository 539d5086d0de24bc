#include "simulation/gauge_replay.hpp"

#include <string>

#include "allocators/bfc_allocator.hpp"
#include "allocators/bounding_allocators.hpp"
#include "allocators/device_allocator.hpp"
#include "base/error.hpp"
#include "base/huge_pages.hpp"
#include "simulation/request_walk.hpp"

namespace xmem::simulation {
namespace {

template <allocators::FrameworkAllocator Allocator>
GaugeReplay run(const Requests& requests, Allocator allocator, bool keep_timeline) {
  GaugeReplay result;
  if (keep_timeline) {
    auto& [allocated, active, reserved, requested] = result.timeline;
    for (std::vector<Bytes>* gauge : {&allocated, &active, &reserved, &requested}) {
      reserve_on_huge_pages(*gauge, requests.kind.size());
    }
  }
  RequestWalk walk(requests, allocator);
  const auto record = [keep_timeline](std::vector<Bytes>& gauge, Peak& peak, Bytes bytes, std::size_t r) {
    if (keep_timeline) gauge.push_back(bytes);
    if (bytes > peak.bytes) peak = {bytes, static_cast<std::int64_t>(r)};
  };
  for (std::size_t r = 0; r < requests.kind.size() && !result.out_of_memory; ++r) {
    if (!walk.apply(r)) result.out_of_memory = static_cast<std::int64_t>(r);
    record(result.timeline.allocated, result.peaks.allocated, allocator.allocated_bytes(), r);
    record(result.timeline.active, result.peaks.active, allocator.active_bytes(), r);
    record(result.timeline.reserved, result.peaks.reserved, allocator.reserved_bytes(), r);
    record(result.timeline.requested, result.peaks.requested, allocator.requested_bytes(), r);
  }
  return result;
}

}  // namespace

GaugeReplay replay_gauges(const Requests& requests, AllocatorKind kind, const allocators::AllocatorOptions& options,
                          const allocators::DeviceProperties& properties, bool keep_timeline) {
  require_consistent(requests);
  allocators::SimulatedDevice device(properties);
  switch (kind) {
    case AllocatorKind::kPerfectReuse:
      return run(requests, allocators::PerfectReuse(options), keep_timeline);
    case AllocatorKind::kNeverReuse:
      return run(requests, allocators::NeverReuse(options), keep_timeline);
    case AllocatorKind::kDevice:
      return run(requests, allocators::DeviceAllocator(allocators::DeviceReference(device)), keep_timeline);
    case AllocatorKind::kBfc:
      return run(requests, allocators::BfcAllocator(allocators::DeviceReference(device)), keep_timeline);
  }
  throw ConfigError("allocator number " + std::to_string(static_cast<int>(kind)) + " is unknown", "use 0 to 3");
}

}  // namespace xmem::simulation
