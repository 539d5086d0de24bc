// The rules of concepts.hpp, held against every framework allocator.
#include <random>

#include "allocators/bfc_allocator.hpp"
#include "allocators/bounding_allocators.hpp"
#include "allocators/caching/caching_allocator.hpp"
#include "allocators/device_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "testing.hpp"

using namespace xmem::allocators;
using namespace xmem::literals;
using xmem::Bytes;

namespace {

// An allocator over a device of its own.
template <class Allocator>
struct On {
  explicit On(Bytes capacity) : device({.capacity = capacity}), allocator(make()) {}

  Allocator make() {
    if constexpr (std::is_constructible_v<Allocator, AllocatorOptions, DeviceReference>) {
      return Allocator(AllocatorOptions{}, DeviceReference(device));
    } else if constexpr (std::is_constructible_v<Allocator, DeviceReference>) {
      return Allocator(DeviceReference(device));
    } else {
      return Allocator(AllocatorOptions{});
    }
  }

  static constexpr bool kAsksDevice = std::is_constructible_v<Allocator, DeviceReference> ||
                                      std::is_constructible_v<Allocator, AllocatorOptions, DeviceReference>;

  SimulatedDevice device;
  Allocator allocator;
};

template <FrameworkAllocator Allocator>
void check_gauges(const Allocator& allocator, Bytes requested) {
  allocator.check_invariants();
  CHECK_EQUAL(allocator.requested_bytes(), requested);
  CHECK(allocator.requested_bytes() <= allocator.allocated_bytes());
  CHECK(allocator.allocated_bytes() <= allocator.active_bytes());
  CHECK(allocator.active_bytes() <= allocator.reserved_bytes());
}

struct Live {
  BlockHandle handle;
  Bytes size;
};

// A random history on a small device; the reserved bytes after each request.
template <FrameworkAllocator Allocator>
std::vector<Bytes> random_history(unsigned seed) {
  std::mt19937 random(seed);
  On<Allocator> on(200_MiB);
  std::vector<Live> live;
  std::vector<Bytes> reserved;
  Bytes requested = 0;
  int failures = 0;
  for (int request = 0; request < 600; ++request) {
    if (live.empty() || random() % 5 < 3) {
      const Bytes size = 1 + static_cast<Bytes>(random() % (1U << (4 + random() % 22)));
      const BlockHandle handle = on.allocator.allocate(size, 0);
      if (handle.is_none()) {
        ++failures;
      } else {
        for (const Live& other : live) CHECK(!(other.handle == handle));
        live.push_back({handle, size});
        requested += size;
      }
    } else if (random() % 20 == 0) {
      on.allocator.empty_cache();
    } else {
      const std::size_t which = random() % live.size();
      on.allocator.free(live[which].handle);
      requested -= live[which].size;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    check_gauges(on.allocator, requested);
    reserved.push_back(on.allocator.reserved_bytes());
  }
  for (const Live& block : live) on.allocator.free(block.handle);
  check_gauges(on.allocator, 0);
  CHECK_EQUAL(on.allocator.allocated_bytes(), 0);
  CHECK_EQUAL(on.allocator.active_bytes(), 0);
  CHECK(On<Allocator>::kAsksDevice || failures == 0);
  return reserved;
}

template <FrameworkAllocator Allocator>
void conform() {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CHECK((random_history<Allocator>(seed) == random_history<Allocator>(seed)));
  }
  if constexpr (On<Allocator>::kAsksDevice) {
    On<Allocator> on(64_MiB);
    const BlockHandle kept = on.allocator.allocate(40_MiB, 0);
    CHECK(!kept.is_none());
    CHECK(on.allocator.allocate(60_MiB, 0).is_none());
    check_gauges(on.allocator, 40_MiB);
    on.allocator.free(kept);
    CHECK(!on.allocator.allocate(60_MiB, 0).is_none());
  }
}

}  // namespace

TEST(the_caching_allocator_conforms) {
  conform<CachingAllocator>();
}
TEST(bfc_conforms) {
  conform<BfcAllocator>();
}
TEST(the_device_allocator_conforms) {
  conform<DeviceAllocator>();
}
TEST(the_bounds_conform) {
  conform<PerfectReuse>();
  conform<NeverReuse>();
}

TEST(the_bounds_enclose_the_caching_allocator) {
  for (const bool expandable : {false, true}) {
    AllocatorOptions options;
    options.expandable = expandable;
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::mt19937 random(seed);
      SimulatedDevice device;
      CachingAllocator caching(options, DeviceReference(device));
      PerfectReuse least(options);
      NeverReuse most(options);
      std::vector<std::array<BlockHandle, 3>> live;
      Bytes peak = 0;
      for (int request = 0; request < 400; ++request) {
        if (live.empty() || random() % 2 == 0) {
          const Bytes size = 1 + static_cast<Bytes>(random() % (1U << (4 + random() % 22)));
          live.push_back({caching.allocate(size, 0), least.allocate(size, 0), most.allocate(size, 0)});
        } else {
          const std::size_t which = random() % live.size();
          caching.free(live[which][0]);
          least.free(live[which][1]);
          most.free(live[which][2]);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        }
        peak = std::max(peak, caching.reserved_bytes());
        CHECK(least.reserved_bytes() <= peak);
        CHECK(peak <= most.reserved_bytes());
      }
    }
  }
}
