#include "blocks/pairing.hpp"
#include "testing.hpp"

using namespace xmem::blocks;
using xmem::kNever;
using xmem::trace::Diagnostics;
using xmem::trace::MemoryTable;
using xmem::trace::Problem;

namespace {

struct Instants {
  MemoryTable memory;
  Diagnostics diagnostics;

  Instants& add(xmem::Nanoseconds time, std::int64_t address, xmem::Bytes bytes, std::int8_t device_type = 0) {
    memory.append({.time_ns = time, .address = address, .bytes = bytes, .device_type = device_type, .thread = 0});
    return *this;
  }
  BlockTable pair() { return pair_blocks(memory, diagnostics); }
};

}  // namespace

TEST(an_address_is_reused_by_block_after_block) {
  Instants instants;
  const BlockTable blocks = instants.add(1, 16, 100).add(2, 16, -100).add(3, 16, 50).pair();
  CHECK_EQUAL(blocks.size(), 2U);
  CHECK_EQUAL(blocks.free_ns[0], 2);
  CHECK_EQUAL(blocks.size_bytes[1], 50);
  CHECK_EQUAL(blocks.free_ns[1], kNever);
  CHECK_EQUAL(int{blocks.flags[1]}, int{kNeverFreed});
}

TEST(one_address_on_two_devices_is_two_blocks) {
  Instants instants;
  const BlockTable blocks = instants.add(1, 16, 100, 0).add(2, 16, 200, 1).add(3, 16, -100, 0).pair();
  CHECK_EQUAL(blocks.free_ns[0], 3);
  CHECK_EQUAL(blocks.free_ns[1], kNever);
}

TEST(a_free_without_an_allocation_is_a_block_born_before_the_trace) {
  Instants instants;
  const BlockTable blocks = instants.add(5, 16, 10).add(7, 99, -64).pair();
  CHECK_EQUAL(int{blocks.flags[0]}, int{kBornBefore});
  CHECK_EQUAL(blocks.alloc_ns[0], 5);
  CHECK_EQUAL(blocks.size_bytes[0], 64);
  CHECK(instants.diagnostics.all()[0].problem == Problem::free_of_unknown_address);
}

TEST(a_lost_free_ends_the_older_block_where_the_younger_begins) {
  Instants instants;
  const BlockTable blocks = instants.add(1, 16, 100).add(4, 16, 200).add(6, 16, -200).pair();
  CHECK_EQUAL(blocks.free_ns[0], 4);
  CHECK_EQUAL(int{blocks.flags[0]}, int{kOverwritten});
  CHECK_EQUAL(blocks.free_ns[1], 6);
  CHECK(instants.diagnostics.all()[0].problem == Problem::missed_free);
}

TEST(without_addresses_the_youngest_of_the_size_is_freed) {
  Instants instants;
  const BlockTable blocks = instants.add(1, -1, 100).add(2, -1, 100).add(3, -1, -100).pair();
  CHECK_EQUAL(blocks.free_ns[0], kNever);
  CHECK_EQUAL(blocks.free_ns[1], 3);
}
