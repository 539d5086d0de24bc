// Small histories with every number worked out by hand: one stream, default options and an empty start unless said.
// docs/allocator_model.md lists them.
#include "allocators/caching/rounding.hpp"
#include "machine.hpp"

using namespace xmem::testing;

TEST(E1_small_requests_share_a_segment) {
  Machine m;
  const BlockHandle a = m.malloc(1_B);
  const BlockHandle b = m.malloc(513_B);
  const BlockHandle c = m.malloc(1_MiB);
  CHECK_EQUAL(m.offset(a), 0);
  CHECK_EQUAL(m.size(a), 512);
  CHECK_EQUAL(m.offset(b), 512);
  CHECK_EQUAL(m.size(b), 1024);
  CHECK_EQUAL(m.offset(c), 1536);
  CHECK(m.free_sizes() == Sizes{1'047'040});
  CHECK_EQUAL(m.reserved(), 2_MiB);
  m.malloc(1_MiB);
  CHECK_EQUAL(m.reserved(), 4_MiB);
  CHECK_EQUAL(m.statistics().inactive_split.all.current, 2);
  CHECK_EQUAL(m.statistics().inactive_split_bytes.all.current, 2'095'616);
}

TEST(E2_boundaries_of_pools_and_segments) {
  const auto reserved_for = [](xmem::Bytes request) {
    Machine m;
    m.malloc(request);
    return m.reserved();
  };
  CHECK_EQUAL(reserved_for(1_MiB), 2_MiB);
  CHECK_EQUAL(reserved_for(1_MiB + 1), 20_MiB);
  CHECK_EQUAL(reserved_for(10_MiB - 512), 20_MiB);
  CHECK_EQUAL(reserved_for(10_MiB - 1), 10_MiB);
  CHECK_EQUAL(reserved_for(10_MiB + 1), 12_MiB);
  CHECK_EQUAL(reserved_for(20_MiB + 1), 22_MiB);

  Machine m;
  CHECK_EQUAL(m.size(m.malloc(11_MiB)), 12_MiB);
  CHECK(m.free_sizes().empty());
  m.malloc(10_MiB + 1);
  CHECK(m.free_sizes() == Sizes{2'096'640});
}

TEST(E3_a_rest_of_exactly_1_MiB_stays_inside) {
  Machine m;
  m.malloc(9_MiB);
  CHECK_EQUAL(m.size(m.malloc(10_MiB)), 11_MiB);
  CHECK_EQUAL(m.allocated(), 20_MiB);
  CHECK_EQUAL(m.reserved(), 20_MiB);

  Machine split;
  split.malloc(9_MiB);
  split.malloc(10_MiB - 512);
  CHECK_EQUAL(split.allocated(), 19'922'432);
}

TEST(E4_best_fit) {
  Machine m;
  const BlockHandle blocks[] = {m.malloc(30_MiB), m.malloc(24_MiB), m.malloc(40_MiB)};
  for (const BlockHandle block : blocks) m.free(block);
  CHECK_EQUAL(m.size(m.malloc(23_MiB)), 24_MiB);
  const BlockHandle front = m.malloc(22_MiB);
  CHECK_EQUAL(m.offset(front), 0);
  CHECK_EQUAL(m.size(front), 22_MiB);
  CHECK_EQUAL(m.reserved(), 94_MiB);
  CHECK_EQUAL(m.allocated(), 46_MiB);
  CHECK((m.free_sizes() == Sizes{8_MiB, 40_MiB}));
}

TEST(E5_ties_of_size_by_address_or_by_age) {
  const auto offset_with = [](TieBreak tie_break) {
    Machine m({.tie_break = tie_break});
    const BlockHandle h = m.malloc(16_MiB);
    const BlockHandle w = m.malloc(16_MiB);
    m.free(h);
    m.empty_cache();
    const BlockHandle y = m.malloc(16_MiB);
    CHECK_EQUAL(m.offset(y), 0);
    m.free(w);
    m.free(y);
    return m.offset(m.malloc(16_MiB));
  };
  CHECK_EQUAL(offset_with(TieBreak::kAddress), 0);
  CHECK_EQUAL(offset_with(TieBreak::kObjectAge), 16_MiB);
  CHECK_EQUAL(offset_with(TieBreak::kSegmentAge), 16_MiB);
}

TEST(E6_free_neighbours_join_at_once) {
  Machine m;
  const BlockHandle a = m.malloc(4_MiB);
  const BlockHandle b = m.malloc(4_MiB);
  const BlockHandle c = m.malloc(4_MiB);
  const auto splits = [&] { return m.statistics().inactive_split.all.current; };
  const auto split_bytes = [&] { return m.statistics().inactive_split_bytes.all.current; };
  m.free(b);
  CHECK((m.free_sizes() == Sizes{4_MiB, 8_MiB}));
  CHECK_EQUAL(splits(), 2);
  CHECK_EQUAL(split_bytes(), 12_MiB);
  m.free(a);
  CHECK((m.free_sizes() == Sizes{8_MiB, 8_MiB}));
  CHECK_EQUAL(splits(), 2);
  CHECK_EQUAL(split_bytes(), 16_MiB);
  m.free(c);
  CHECK((m.free_sizes() == Sizes{20_MiB}));
  CHECK_EQUAL(splits(), 0);
  CHECK_EQUAL(split_bytes(), 0);
  CHECK_EQUAL(m.reserved(), 20_MiB);
}

TEST(E7_flush_and_retry) {
  Machine m({}, 100_MiB);
  const BlockHandle a = m.malloc(40_MiB);
  const BlockHandle b = m.malloc(30_MiB);
  m.free(a);
  m.free(b);
  m.events();
  m.malloc(80_MiB);
  CHECK((m.events() == Events{"segment_free 30@40", "segment_free 40@0", "segment_alloc 80@0"}));
  CHECK_EQUAL(m.reserved(), 80_MiB);
  CHECK_EQUAL(m.statistics().reserved_bytes.all.peak, 80_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(m.statistics().num_sync_all_streams, 1);
  CHECK_EQUAL(m.statistics().num_device_free, 2);
  CHECK_EQUAL(m.statistics().num_ooms, 0);
}

TEST(E8_a_live_block_pins_its_segment) {
  Machine m({}, 100_MiB);
  m.free(m.malloc(40_MiB));
  m.malloc(12_MiB);
  CHECK((m.free_sizes() == Sizes{28_MiB}));
  m.events();
  CHECK(m.malloc(70_MiB).is_none());
  CHECK((m.events() == Events{"oom 70@60"}));
  CHECK_EQUAL(m.allocator.last_out_of_memory().rounded_size, 73'400'320);
  CHECK_EQUAL(m.allocator.last_out_of_memory().device_free_bytes, 60_MiB);
  CHECK_EQUAL(m.reserved(), 40_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 1);
  CHECK_EQUAL(m.statistics().num_ooms, 1);
  CHECK_EQUAL(m.statistics().num_sync_all_streams, 1);
  CHECK(!m.malloc(28_MiB).is_none());  // the allocator is as good as before
}

TEST(E9_blocks_above_max_split_size_are_not_split) {
  Machine m({.max_split = 50_MiB});
  m.free(m.malloc(60_MiB));
  m.malloc(30_MiB);
  CHECK_EQUAL(m.reserved(), 90_MiB);
  CHECK_EQUAL(m.size(m.malloc(55_MiB)), 60_MiB);

  Machine near({.max_split = 50_MiB});
  near.free(near.malloc(90_MiB));
  near.malloc(70_MiB);
  CHECK_EQUAL(near.reserved(), 160_MiB);
  CHECK_EQUAL(near.size(near.malloc(70_MiB + 512)), 90_MiB);
  CHECK_EQUAL(near.statistics().oversize_allocations.current, 2);
  CHECK_EQUAL(near.statistics().oversize_segments.current, 2);
}

TEST(E10_oversize_blocks_go_before_a_flush) {
  Machine m({.max_split = 50_MiB}, 200_MiB);
  const BlockHandle blocks[] = {m.malloc(60_MiB), m.malloc(30_MiB), m.malloc(70_MiB)};
  for (const BlockHandle block : blocks) m.free(block);
  m.events();
  m.malloc(100_MiB);
  CHECK((m.events() == Events{"segment_free 70@90", "segment_free 60@0", "segment_alloc 100@90"}));
  CHECK_EQUAL(m.reserved(), 130_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 0);
  CHECK_EQUAL(m.statistics().num_sync_all_streams, 0);
}

TEST(E11_rounding_to_four_divisions) {
  AllocatorOptions options;
  options.roundup_divisions.fill(4);
  const auto size_of = [&](xmem::Bytes request) { return xmem::allocators::round_size(request, options); };
  CHECK_EQUAL(size_of(1200), 1536);
  CHECK_EQUAL(size_of(2048), 2048);
  CHECK_EQUAL(size_of(2049), 2560);
  CHECK_EQUAL(size_of(3000), 3072);
  CHECK_EQUAL(size_of(1_MiB + 1), 1280_KiB);
  CHECK_EQUAL(size_of(1536_KiB + 1), 1792_KiB);
  CHECK_EQUAL(size_of(5_MiB + 1), 6_MiB);
  CHECK_EQUAL(size_of(7_MiB + 1), 8_MiB);
}

TEST(E12_expandable_segments_map_and_unmap_pages) {
  Machine m({.expandable = true}, 200_MiB);
  const BlockHandle a = m.malloc(30_MiB);
  CHECK((m.events() == Events{"segment_map 40@0"}));
  CHECK_EQUAL(m.offset(m.malloc(5_MiB)), 30_MiB);
  CHECK(m.events().empty());
  CHECK_EQUAL(m.offset(m.malloc(10_MiB)), 35_MiB);
  CHECK((m.events() == Events{"segment_map 20@40"}));
  CHECK_EQUAL(m.reserved(), 60_MiB);
  CHECK_EQUAL(m.allocated(), 45_MiB);
  CHECK_EQUAL(m.statistics().segment.all.current, 0);
  m.free(a);
  CHECK((m.free_sizes() == Sizes{30_MiB, 15_MiB}));
  m.empty_cache();
  CHECK((m.events() == Events{"segment_unmap 20@0"}));
  CHECK_EQUAL(m.reserved(), 40_MiB);
  const BlockHandle b = m.malloc(25_MiB);
  CHECK((m.events() == Events{"segment_map 20@0"}));
  CHECK_EQUAL(m.offset(b), 0);
  CHECK_EQUAL(m.size(b), 25_MiB);
}

TEST(E13_pages_of_20_MiB_can_fail_where_segments_fit) {
  Machine m({.expandable = true}, 50_MiB);
  m.malloc(30_MiB);
  m.events();
  CHECK(m.malloc(15_MiB).is_none());
  CHECK((m.events() == Events{"oom 15@10"}));
  CHECK((m.free_sizes() == Sizes{10_MiB}));

  Machine plain({}, 50_MiB);
  plain.malloc(30_MiB);
  CHECK(!plain.malloc(15_MiB).is_none());
  CHECK_EQUAL(plain.reserved(), 46_MiB);
}

TEST(E14_expandable_best_fit_spares_the_tail) {
  Machine m({.expandable = true}, 1_GiB);
  const BlockHandle a = m.malloc(12_MiB);
  m.malloc(5_MiB);
  m.free(a);
  CHECK_EQUAL(m.offset(m.malloc(2_MiB)), 0);

  Machine plain;
  const BlockHandle hole[] = {plain.malloc(6_MiB), plain.malloc(6_MiB)};
  plain.malloc(5_MiB);
  for (const BlockHandle block : hole) plain.free(block);
  const BlockHandle tail = plain.malloc(2_MiB);
  CHECK_EQUAL(plain.offset(tail), 17_MiB);
  CHECK_EQUAL(plain.allocated(), 8_MiB);
}

TEST(E15_a_block_used_on_another_stream_waits) {
  Machine m;
  const BlockHandle a = m.malloc(16_MiB);
  m.allocator.record_stream(a, 7);
  m.free(a);
  CHECK_EQUAL(m.allocated(), 0);
  CHECK_EQUAL(m.allocator.active_bytes(), 16_MiB);
  CHECK(m.free_sizes().empty());
  m.malloc(16_MiB);
  CHECK_EQUAL(m.reserved(), 32_MiB);
  m.events();
  m.allocator.complete(a);
  CHECK((m.events() == Events{"free_completed 16@0"}));
  CHECK_EQUAL(m.offset(m.malloc(16_MiB)), 0);
  CHECK_EQUAL(m.reserved(), 32_MiB);
}

TEST(E16_streams_share_nothing) {
  Machine m;
  m.free(m.malloc(16_MiB, 0));
  m.malloc(16_MiB, 7);
  CHECK_EQUAL(m.reserved(), 32_MiB);
}

TEST(E17_a_memory_fraction_is_tested_before_the_device) {
  Machine m({.memory_fraction = 0.5}, 100_MiB);
  m.free(m.malloc(30_MiB));
  CHECK(!m.malloc(40_MiB).is_none());
  CHECK_EQUAL(m.statistics().num_alloc_retries, 1);
  CHECK(m.malloc(12_MiB).is_none());
  CHECK_EQUAL(m.allocator.last_out_of_memory().device_free_bytes, 60_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 2);
  CHECK_EQUAL(m.statistics().num_ooms, 1);
}

TEST(E18_garbage_collection_takes_the_oldest) {
  Machine m({.gc_threshold = 0.5, .memory_fraction = 0.99}, 100_MiB);
  const BlockHandle a = m.malloc(20_MiB);
  const BlockHandle b = m.malloc(24_MiB);
  m.free(a);
  m.free(m.malloc(24_MiB));
  m.free(m.malloc(24_MiB));
  m.free(b);
  m.events();
  m.malloc(26_MiB);
  CHECK((m.events() == Events{"segment_free 20@0", "segment_alloc 26@68"}));
  CHECK_EQUAL(m.reserved(), 74_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 0);
}

TEST(E19_a_flush_releases_large_segments_first_in_order_of_size) {
  Machine m({}, 64_MiB);
  const BlockHandle blocks[] = {m.malloc(100_B), m.malloc(24_MiB), m.malloc(12_MiB), m.malloc(1_MiB)};
  for (const BlockHandle block : blocks) m.free(block);
  m.events();
  m.malloc(60_MiB);
  CHECK((m.events() == Events{"segment_free 12@26", "segment_free 24@2", "segment_free 2@0", "segment_alloc 60@0"}));
}

TEST(E20_a_small_block_pins_a_small_segment) {
  Machine m;
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(m.malloc(512_KiB));
  for (int i = 0; i < 8; ++i) {
    if (i % 4 != 0) m.free(blocks[static_cast<std::size_t>(i)]);
  }
  m.events();
  m.empty_cache();
  CHECK(m.events().empty());
  CHECK_EQUAL(m.reserved(), 4_MiB);
  CHECK_EQUAL(m.allocated(), 1_MiB);
  CHECK((m.free_sizes() == Sizes{1'572'864, 1'572'864}));
}

TEST(E21_a_cublas_workspace_opens_a_segment_for_others) {
  Machine m;
  m.malloc(8'519'680_B);
  CHECK_EQUAL(m.reserved(), 20_MiB);
  CHECK((m.free_sizes() == Sizes{12'451'840}));  // 11.875 MiB
  for (int i = 0; i < 3; ++i) m.malloc(3_MiB);
  CHECK_EQUAL(m.reserved(), 20_MiB);
  CHECK((m.free_sizes() == Sizes{3'014'656}));  // the fourth does not fit
  m.malloc(3_MiB);
  CHECK_EQUAL(m.reserved(), 40_MiB);

  Machine alone;
  for (int i = 0; i < 6; ++i) alone.malloc(3_MiB);
  CHECK((alone.free_sizes() == Sizes{2_MiB}));
  CHECK_EQUAL(alone.reserved(), 20_MiB);
  alone.malloc(3_MiB);
  CHECK_EQUAL(alone.reserved(), 40_MiB);
}

TEST(E22_the_order_of_requests_decides_what_is_reserved) {
  Machine ascending;
  ascending.free(ascending.malloc(78_MiB));
  ascending.free(ascending.malloc(118_MiB));
  CHECK_EQUAL(ascending.reserved(), 196_MiB);

  Machine descending;
  descending.free(descending.malloc(118_MiB));
  descending.free(descending.malloc(78_MiB));
  CHECK_EQUAL(descending.reserved(), 118_MiB);
}
