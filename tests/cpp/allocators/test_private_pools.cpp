// Private pools: what CUDA graphs and torch.cuda.MemPool keep apart, and when it goes back.
#include "base/error.hpp"
#include "machine.hpp"

using namespace xmem::testing;
using xmem::ConfigError;

TEST(a_private_pool_and_the_default_pool_share_nothing) {
  Machine m;
  m.free(m.malloc(16_MiB));
  m.allocator.begin_pool(1);
  const BlockHandle inside = m.malloc(16_MiB);
  CHECK_EQUAL(m.allocator.mempool_of(inside), 1);
  m.free(inside);
  m.allocator.end_pool(1);
  CHECK_EQUAL(m.allocator.mempool_of(m.malloc(16_MiB)), 0);
  CHECK_EQUAL(m.reserved(), 32_MiB);
  CHECK_EQUAL(m.allocator.reserved_by_private_pools().at(1).all.current, 16_MiB);
}

TEST(memory_of_a_pool_goes_back_when_nobody_uses_it) {
  Machine m;
  m.allocator.retain_pool(1);
  m.allocator.begin_pool(1);
  m.free(m.malloc(16_MiB));
  m.free(m.malloc(1_MiB));
  m.allocator.end_pool(1);
  m.allocator.release_pool(1);
  m.events();
  m.empty_cache();
  CHECK(m.events().empty());
  m.allocator.release_pool(1);
  m.empty_cache();
  CHECK((m.events() == Events{"segment_free 2@16", "segment_free 16@0"}));  // small pool first, unlike the default's
  CHECK_EQUAL(m.allocator.reserved_by_private_pools().at(1).all.peak, 18_MiB);
}

TEST(one_pool_is_emptied_apart_from_all_others) {
  Machine m;
  m.free(m.malloc(12_MiB));
  m.allocator.begin_pool(1);
  m.free(m.malloc(16_MiB));
  m.allocator.end_pool(1);
  m.allocator.empty_pool(1);
  CHECK_EQUAL(m.statistics().num_sync_all_streams, 0);  // it has a user
  m.allocator.release_pool(1);
  m.allocator.empty_pool(1);
  CHECK_EQUAL(m.reserved(), 12_MiB);
  CHECK_EQUAL(m.statistics().num_sync_all_streams, 1);
}

TEST(a_capture_flushes_no_cache) {
  Machine m({}, 64_MiB);
  m.free(m.malloc(40_MiB));
  m.allocator.begin_capture(1);
  m.events();
  CHECK(m.malloc(40_MiB).is_none());
  CHECK((m.events() == Events{"oom 40@24"}));
  CHECK_EQUAL(m.statistics().num_alloc_retries, 0);
  m.empty_cache();
  CHECK_EQUAL(m.reserved(), 40_MiB);
  m.allocator.end_pool(1);
  CHECK(!m.malloc(50_MiB).is_none());
}

TEST(use_mem_pool_flushes_since_2_13_only) {
  for (const bool up_to_2_12 : {false, true}) {
    Machine m({.every_scope_captures = up_to_2_12}, 64_MiB);
    m.free(m.malloc(40_MiB));
    m.allocator.begin_pool(1);
    CHECK_EQUAL(m.malloc(40_MiB).is_none(), up_to_2_12);
  }
}

TEST(frees_of_blocks_that_other_streams_use_wait_for_the_end_of_a_capture) {
  Machine m;
  const BlockHandle before = m.malloc(16_MiB);
  const BlockHandle during = m.malloc(12_MiB);
  m.allocator.record_stream(before);
  m.allocator.begin_capture(1);
  m.allocator.record_stream(during);
  m.free(before);
  m.free(during);
  m.events();
  m.allocator.process_events();
  CHECK(m.events().empty());
  m.allocator.end_pool(1);
  m.allocator.process_events();
  CHECK((m.events() == Events{"free_completed 12@16", "free_completed 16@0"}));  // uses in the capture ended with it
}

TEST(of_several_scopes_the_version_says_which_serves) {
  for (const bool newest_first : {true, false}) {
    Machine m({.newest_scope_first = newest_first});
    m.allocator.begin_pool(1);
    m.allocator.begin_pool(2);
    CHECK_EQUAL(m.allocator.mempool_of(m.malloc(1_MiB)), newest_first ? 2 : 1);
    m.allocator.end_pool(2);
    CHECK_EQUAL(m.allocator.mempool_of(m.malloc(1_MiB)), 1);
  }
}

TEST(a_pool_that_allows_it_serves_before_caches_are_flushed) {
  Machine m({}, 64_MiB);
  m.allocator.use_pool_on_oom(1);
  m.allocator.begin_pool(1);
  m.free(m.malloc(40_MiB));
  m.allocator.end_pool(1);
  m.free(m.malloc(12_MiB));
  CHECK_EQUAL(m.allocator.mempool_of(m.malloc(30_MiB)), 1);
  CHECK_EQUAL(m.reserved(), 52_MiB);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 0);
}

TEST(blocks_of_a_pool_without_splits_are_whole_segments) {
  Machine m;
  m.allocator.forbid_split_of_pool(1);
  m.allocator.begin_pool(1);
  CHECK_EQUAL(m.size(m.malloc(2_MiB)), 20_MiB);
  CHECK_EQUAL(m.size(m.malloc(1)), 2_MiB);
  m.allocator.end_pool(1);
  CHECK_EQUAL(m.size(m.malloc(1)), 512);
}

TEST(ranges_of_expandable_segments_belong_to_one_pool) {
  Machine m({.expandable = true}, 200_MiB);
  m.malloc(5_MiB);
  m.allocator.begin_pool(1);
  const BlockHandle inside = m.malloc(5_MiB);
  m.allocator.end_pool(1);
  CHECK_EQUAL(m.reserved(), 40_MiB);
  m.free(inside);
  m.allocator.release_pool(1);
  m.empty_cache();
  CHECK_EQUAL(m.reserved(), 20_MiB);
  CHECK_EQUAL(m.allocator.reserved_by_private_pools().at(1).all.current, 0);
}

TEST(garbage_collection_leaves_private_pools_alone) {
  Machine m({.gc_threshold = 0.1, .memory_fraction = 0.9}, 100_MiB);
  m.allocator.begin_pool(1);
  m.free(m.malloc(20_MiB));
  m.allocator.end_pool(1);
  m.free(m.malloc(20_MiB));
  m.events();
  m.malloc(30_MiB);
  CHECK((m.events() == Events{"segment_free 20@20", "segment_alloc 30@20"}));
}

TEST(calls_at_which_pytorch_fails_are_refused) {
  Machine m;
  CHECK_THROWS(m.allocator.begin_pool(0), ConfigError);
  CHECK_THROWS(m.allocator.end_pool(1), ConfigError);
  CHECK_THROWS(m.allocator.release_pool(1), ConfigError);
  m.allocator.begin_pool(1);
  CHECK_THROWS(m.allocator.begin_capture(1), ConfigError);
  m.malloc(1_MiB);
  m.allocator.end_pool(1);
  m.allocator.release_pool(1);
  CHECK_THROWS(m.allocator.retain_pool(1), ConfigError);  // it waits to be given back
  m.allocator.begin_capture(2);
  CHECK_THROWS(m.allocator.empty_pool(1), ConfigError);
}
