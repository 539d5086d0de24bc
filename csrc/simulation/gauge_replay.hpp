// A request sequence through other allocators than PyTorch's: gauges only, to compare and to bound.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "allocators/device_memory.hpp"
#include "allocators/options.hpp"
#include "simulation/replay.hpp"
#include "simulation/requests.hpp"

namespace xmem::simulation {

enum class AllocatorKind : std::uint8_t {
  kPerfectReuse = 0,
  kNeverReuse = 1,
  kDevice = 2,
  kBfc = 3,
};

struct GaugeReplay {
  Timeline timeline;                          // up to and with the request that failed; empty where not kept
  Peaks peaks;                                // of the gauges after each request
  std::optional<std::int64_t> out_of_memory;  // the request that failed; the replay ends there
};

// `options`: rounding and segments of the two bounds; the others have none. The bounds ask no device.
// Throws ConfigError when the requests do not fit together.
GaugeReplay replay_gauges(const Requests& requests, AllocatorKind kind, const allocators::AllocatorOptions& options,
                          const allocators::DeviceProperties& device, bool keep_timeline = true);

}  // namespace xmem::simulation
