// The bounds, plain device allocation and TensorFlow's BFC, by hand.
#include "allocators/bfc_allocator.hpp"
#include "allocators/bounding_allocators.hpp"
#include "allocators/device_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "testing.hpp"

using namespace xmem::allocators;
using namespace xmem::literals;
using xmem::Bytes;

TEST(perfect_reuse_holds_the_most_that_was_alive_at_once) {
  PerfectReuse allocator(AllocatorOptions{});
  const BlockHandle first = allocator.allocate(1000, 0);
  CHECK_EQUAL(allocator.reserved_bytes(), 1024);
  allocator.free(first);
  const BlockHandle second = allocator.allocate(3000, 0);
  CHECK_EQUAL(allocator.reserved_bytes(), 3072);
  allocator.free(second);
  CHECK_EQUAL(allocator.reserved_bytes(), 3072);
  allocator.empty_cache();
  CHECK_EQUAL(allocator.reserved_bytes(), 0);
}

TEST(no_reuse_adds_a_segment_for_each_request) {
  NeverReuse allocator(AllocatorOptions{});
  allocator.free(allocator.allocate(1000, 0));
  CHECK_EQUAL(allocator.reserved_bytes(), 2_MiB);
  allocator.free(allocator.allocate(2_MiB, 0));
  CHECK_EQUAL(allocator.reserved_bytes(), 22_MiB);
  allocator.allocate(11_MiB, 0);
  CHECK_EQUAL(allocator.reserved_bytes(), 34_MiB);
  allocator.empty_cache();
  CHECK_EQUAL(allocator.reserved_bytes(), 34_MiB);

  AllocatorOptions expandable;
  expandable.expandable = true;
  NeverReuse pages(expandable);
  pages.allocate(11_MiB, 0);
  CHECK_EQUAL(pages.reserved_bytes(), 20_MiB);
  pages.allocate(21_MiB, 0);
  CHECK_EQUAL(pages.reserved_bytes(), 60_MiB);
}

TEST(no_reuse_does_not_overflow) {
  NeverReuse allocator(AllocatorOptions{});
  for (int i = 0; i < (1 << 17); ++i) allocator.free(allocator.allocate(Bytes{1} << 44, 0));
  CHECK_EQUAL(allocator.reserved_bytes(), kUnlimitedBytes);
}

TEST(plain_device_allocation_pays_whole_pages_and_keeps_nothing) {
  SimulatedDevice device({.capacity = 8_MiB});
  DeviceAllocator allocator{DeviceReference(device)};
  const BlockHandle small = allocator.allocate(100, 0);
  const BlockHandle large = allocator.allocate(3_MiB, 0);
  CHECK_EQUAL(allocator.allocated_bytes(), 3_MiB + 256);
  CHECK_EQUAL(allocator.reserved_bytes(), 6_MiB);
  CHECK(allocator.allocate(3_MiB, 0).is_none());
  allocator.free(large);
  CHECK_EQUAL(allocator.reserved_bytes(), 2_MiB);
  allocator.free(small);
  CHECK_EQUAL(device.free_bytes(), 8_MiB);
}

namespace {

struct Bfc {
  explicit Bfc(Bytes capacity = kUnlimitedBytes) : device({.capacity = capacity}), allocator(DeviceReference(device)) {}

  BlockHandle malloc(Bytes size) {
    const BlockHandle block = allocator.allocate(size, 0);
    allocator.check_invariants();
    return block;
  }
  void free(BlockHandle block) {
    allocator.free(block);
    allocator.check_invariants();
  }

  SimulatedDevice device;
  BfcAllocator allocator;
};

}  // namespace

TEST(bfc_regions_double) {
  Bfc bfc;
  bfc.malloc(1);
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 2_MiB);
  CHECK_EQUAL(bfc.allocator.allocated_bytes(), 256);
  bfc.malloc(2_MiB);  // the next region is 4 MiB
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 6_MiB);
  bfc.malloc(20_MiB);  // 8, 16, 32; then not doubled once more
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 38_MiB);
  bfc.malloc(30_MiB);
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 70_MiB);
}

TEST(bfc_splits_a_chunk_twice_as_large) {
  Bfc bfc;
  const BlockHandle a = bfc.malloc(512_KiB);
  CHECK_EQUAL(bfc.allocator.size(a), 512_KiB);  // of 2 MiB
  const BlockHandle b = bfc.malloc(800_KiB);    // of 1536 KiB: not twice
  CHECK_EQUAL(bfc.allocator.size(b), 1536_KiB);
  bfc.free(b);
  const BlockHandle c = bfc.malloc(768_KiB);  // exactly twice
  CHECK_EQUAL(bfc.allocator.size(c), 768_KiB);
}

TEST(bfc_splits_off_128_MiB) {
  Bfc bfc;
  const BlockHandle whole = bfc.malloc(512_MiB);
  CHECK_EQUAL(bfc.allocator.size(whole), 512_MiB);
  bfc.free(whole);
  const BlockHandle kept = bfc.malloc(384_MiB + 256);
  CHECK_EQUAL(bfc.allocator.size(kept), 512_MiB);
  bfc.free(kept);
  CHECK_EQUAL(bfc.allocator.size(bfc.malloc(384_MiB)), 384_MiB);
}

TEST(bfc_takes_the_smallest_chunk_then_the_lowest_address) {
  Bfc bfc;
  const BlockHandle a = bfc.malloc(1024);
  bfc.malloc(256);
  const BlockHandle b = bfc.malloc(512);
  bfc.malloc(256);
  const BlockHandle c = bfc.malloc(512);
  bfc.malloc(256);
  const Bytes lowest = bfc.allocator.address(b);
  bfc.free(c);
  bfc.free(a);
  bfc.free(b);
  CHECK_EQUAL(bfc.allocator.address(bfc.malloc(300)), lowest);
}

TEST(bfc_joins_both_neighbours) {
  Bfc bfc;
  const BlockHandle a = bfc.malloc(512_KiB);
  const BlockHandle b = bfc.malloc(512_KiB);
  const BlockHandle c = bfc.malloc(512_KiB);
  const Bytes begin = bfc.allocator.address(a);
  bfc.free(a);
  bfc.free(c);
  bfc.free(b);
  const BlockHandle whole = bfc.malloc(2_MiB);
  CHECK_EQUAL(bfc.allocator.address(whole), begin);
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 2_MiB);
}

TEST(bfc_asks_for_less_when_the_device_has_less) {
  Bfc bfc(20_MiB);
  bfc.malloc(9_MiB);  // a region of 16 MiB
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 16_MiB);
  bfc.malloc(7_MiB);
  bfc.malloc(3_MiB);  // 32 MiB are due, 4 MiB are left
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 20_MiB);
}

TEST(bfc_gives_free_regions_back_before_it_fails) {
  Bfc bfc(64_MiB);
  const BlockHandle first = bfc.malloc(2_MiB);
  const BlockHandle second = bfc.malloc(30_MiB);
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 34_MiB);
  bfc.free(first);
  bfc.free(second);
  CHECK(!bfc.malloc(60_MiB).is_none());
  CHECK_EQUAL(bfc.allocator.reserved_bytes(), 64_MiB);
  CHECK(bfc.malloc(10_MiB).is_none());
}
