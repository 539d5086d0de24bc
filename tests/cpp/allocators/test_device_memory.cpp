#include "allocators/device_memory.hpp"
#include "base/error.hpp"
#include "testing.hpp"

using namespace xmem::allocators;
using namespace xmem::literals;

TEST(addresses_fill_the_lowest_gap_and_freed_ranges_join) {
  SimulatedDevice device({.capacity = 1_GiB});
  const auto allocate = [&](xmem::Bytes size) -> xmem::Bytes { return device.allocate(size).value_or(-1); };
  const xmem::Bytes a = allocate(10_MiB);
  const xmem::Bytes b = allocate(4_MiB);
  const xmem::Bytes c = allocate(2_MiB);
  CHECK_EQUAL(b - a, 10_MiB);
  CHECK_EQUAL(c - b, 4_MiB);
  device.release(b, 4_MiB);
  CHECK_EQUAL(allocate(6_MiB) - a, 16_MiB);  // the gap of 4 MiB is too short
  device.release(a, 10_MiB);
  CHECK_EQUAL(allocate(14_MiB), a);
}

TEST(descending_addresses_come_in_chunks_whose_rest_is_filled) {
  SimulatedDevice device({.capacity = 1_GiB, .order = AddressOrder::kDescending});
  const auto allocate = [&](xmem::Bytes size) -> xmem::Bytes { return device.allocate(size).value_or(-1); };
  const xmem::Bytes a = allocate(20_MiB);
  const xmem::Bytes b = allocate(40_MiB);
  CHECK_EQUAL(a - b, 64_MiB);                 // two chunks of 32 MiB below the first
  CHECK_EQUAL(allocate(2_MiB) - a, 20_MiB);   // the rest of the first chunk
  CHECK_EQUAL(allocate(12_MiB) - b, 40_MiB);  // that has 10 MiB left, the second 24 MiB
  CHECK_EQUAL(b - allocate(14_MiB), 32_MiB);
  device.release(a, 20_MiB);
  CHECK_EQUAL(allocate(16_MiB) - b, 52_MiB);  // one range with the rest of the second, below
}

TEST(physical_memory_is_counted_in_whole_pages) {
  SimulatedDevice device({.capacity = 10_MiB, .other_bytes = 3_MiB});
  CHECK_EQUAL(device.free_bytes(), 7_MiB);
  CHECK(device.allocate(5_MiB).has_value());
  CHECK_EQUAL(device.free_bytes(), 1_MiB);
  CHECK(!device.allocate(1_MiB).has_value());
  CHECK(!device.map(0, 1_MiB));
}

TEST(reserved_addresses_cost_no_memory) {
  SimulatedDevice device({.capacity = 10_MiB});
  const xmem::Bytes range = device.reserve(100_GiB);
  CHECK_EQUAL(device.free_bytes(), 10_MiB);
  CHECK(device.map(range, 8_MiB));
  CHECK_EQUAL(device.free_bytes(), 2_MiB);
  device.unmap(range, 8_MiB);
  device.unreserve(range, 100_GiB);
  CHECK_EQUAL(device.reserve(1_MiB), range);
}

TEST(a_device_without_room_is_refused) {
  CHECK_THROWS(SimulatedDevice({.capacity = 0}), xmem::ConfigError);
  CHECK_THROWS(SimulatedDevice({.capacity = 1_GiB, .other_bytes = 2_GiB}), xmem::ConfigError);
}
