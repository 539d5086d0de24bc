// Any settings and any requests: an answer that keeps the allocators' laws, or a ConfigError.
#include <optional>

#include "allocators/bfc_allocator.hpp"
#include "allocators/bounding_allocators.hpp"
#include "allocators/caching/caching_allocator.hpp"
#include "allocators/device_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "base/error.hpp"
#include "fuzz_target.hpp"
#include "sequence/request_sequence.hpp"
#include "simulation/gauge_replay.hpp"
#include "simulation/replay.hpp"

using namespace xmem::allocators;
using xmem::fuzz::require;

namespace {

constexpr std::size_t kLongestHistory = 150;

AllocatorOptions options_from(xmem::fuzz::Bytes& input) {
  AllocatorOptions options;
  const std::uint8_t given = input.byte();
  options.tie_break = static_cast<TieBreak>(input.byte() % 3);
  options.expandable = (given & 1) != 0;
  options.reject_over_capacity = (given & 2) != 0;
  if ((given & 4) != 0) options.large_segment = input.size();
  if ((given & 8) != 0) options.max_split = input.size();
  if ((given & 16) != 0) options.max_non_split_rounding = input.size();
  if ((given & 32) != 0) options.gc_threshold = input.byte() / 255.0;
  if ((given & 64) != 0) options.memory_fraction = input.byte() / 255.0;
  if ((given & 128) != 0) {
    for (std::int32_t& divisions : options.roundup_divisions) divisions = 1 << (input.byte() % 12);
  }
  return options;
}

DeviceProperties device_from(xmem::fuzz::Bytes& input) {
  DeviceProperties properties;
  if (input.flag()) properties.capacity = xmem::Bytes{1} << (21 + input.byte() % 20);
  if (input.flag()) properties.other_bytes = input.size();
  return properties;
}

// The gauges as the concept orders them, and the allocator's own rules.
template <FrameworkAllocator Allocator>
void require_laws(const Allocator& allocator, xmem::Bytes requested) {
  allocator.check_invariants();
  if (requested >= 0) {
    require(allocator.requested_bytes() == requested, "requested is what was asked for");
    require(requested <= allocator.allocated_bytes(), "requested <= allocated");
  }
  require(allocator.requested_bytes() <= allocator.active_bytes(), "requested <= active");
  require(allocator.allocated_bytes() <= allocator.active_bytes(), "allocated <= active");
  require(allocator.active_bytes() <= allocator.reserved_bytes(), "active <= reserved");
}

// A history of calls that are allowed, on the allocator itself.
template <FrameworkAllocator Allocator>
void walk(Allocator& allocator, xmem::fuzz::Bytes input) {
  struct Live {
    BlockHandle handle;
    xmem::Bytes size;
  };
  constexpr bool kKnowsStreams = requires(BlockHandle block) { allocator.record_stream(block); };
  std::vector<Live> live;
  xmem::Bytes requested = 0;
  for (std::size_t call = 0; call < kLongestHistory && !input.empty(); ++call) {
    const std::uint8_t what = input.byte() % 16;
    if (what < 8 || live.empty()) {
      const xmem::Bytes size = std::min(input.size(), xmem::kMaxBlockBytes);
      const BlockHandle handle = allocator.allocate(size, what % 3);
      if (!handle.is_none()) {
        live.push_back({handle, size});
        requested += size;
      }
    } else if (what < 13) {
      const std::size_t which = input.below(live.size());
      allocator.free(live[which].handle);
      requested -= live[which].size;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (what == 13) {
      allocator.empty_cache();
    } else if constexpr (kKnowsStreams) {
      if (what == 14) {
        allocator.record_stream(live[input.below(live.size())].handle);
      } else {
        allocator.process_events();
      }
    }
    require_laws(allocator, kKnowsStreams ? -1 : requested);  // a pending free still counts as requested
  }
  for (const Live& block : live) allocator.free(block.handle);
  if constexpr (kKnowsStreams) allocator.process_events();
  allocator.empty_cache();
  require_laws(allocator, 0);
  require(allocator.active_bytes() == 0, "nothing is active when everything was freed");
}

template <FrameworkAllocator Allocator, class... Options>
void walk_on(const DeviceProperties& properties, const xmem::fuzz::Bytes& input, const Options&... options) {
  SimulatedDevice device(properties);
  const xmem::Bytes free_before = device.free_bytes();
  Allocator allocator(options..., DeviceReference(device));
  walk(allocator, input);
  // TensorFlow's allocator has no call that empties its cache.
  require((std::is_same_v<Allocator, BfcAllocator>) || device.free_bytes() == free_before,
          "an emptied cache gives everything back");
}

template <FrameworkAllocator Bound>
void walk_bound(const AllocatorOptions& options, const xmem::fuzz::Bytes& input) {
  Bound allocator(options);
  walk(allocator, input);
}

// Columns of requests that need not fit together.
void replay_anything(const AllocatorOptions& options, const DeviceProperties& device, xmem::fuzz::Bytes input) {
  const std::size_t blocks = input.byte() % 32;
  std::vector<xmem::Bytes> sizes;
  std::vector<std::int64_t> streams;
  for (std::size_t b = 0; b < blocks; ++b) {
    sizes.push_back(input.size());
    streams.push_back(input.byte() % 3);
  }
  std::vector<std::uint8_t> kinds;
  std::vector<std::int32_t> of_block;
  while (!input.empty() && kinds.size() < kLongestHistory) {
    const std::uint8_t what = input.byte();
    kinds.push_back(what % 13);  // every kind, and one that is none
    of_block.push_back(what == 255 ? -1 : input.byte() % 33);
  }
  const xmem::simulation::Requests requests{kinds, of_block, sizes, streams};
  try {
    const auto stop = static_cast<xmem::simulation::OnOutOfMemory>(input.byte() % 2);
    const auto replayed = xmem::simulation::replay(requests, {options, device, stop, std::nullopt, true});
    require(replayed.timeline.reserved.size() <= kinds.size(), "no more rows than requests");
    require(replayed.peaks.reserved.bytes >= replayed.peaks.active.bytes, "peaks are in order");
  } catch (const xmem::ConfigError&) {
    // invalid requests or settings
  }
  for (std::uint8_t kind = 0; kind < 4; ++kind) {
    try {
      xmem::simulation::replay_gauges(requests, static_cast<xmem::simulation::AllocatorKind>(kind), options, device);
    } catch (const xmem::ConfigError&) {
      // as above
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  xmem::fuzz::Bytes input(data, size);
  const AllocatorOptions options = options_from(input);
  const DeviceProperties device = device_from(input);
  try {
    walk_on<CachingAllocator>(device, input, options);
    walk_on<BfcAllocator>(device, input);
    walk_on<DeviceAllocator>(device, input);
    walk_bound<PerfectReuse>(options, input);
    walk_bound<NeverReuse>(options, input);
  } catch (const xmem::ConfigError&) {
    // invalid settings
  }
  replay_anything(options, device, input);
  return 0;
}
