// Beyond the worked examples: refused options, states in and out, and long random histories that keep every invariant.
#include <random>

#include "base/error.hpp"
#include "machine.hpp"

using namespace xmem::testing;
using xmem::allocators::AllocatorState;

TEST(options_that_pytorch_refuses_are_refused) {
  CHECK_THROWS(Machine({.large_segment = 10_MiB}), xmem::ConfigError);
  CHECK_THROWS(Machine({.large_segment = 11_MiB, .expandable = true}), xmem::ConfigError);
  CHECK_THROWS(Machine({.max_split = 19_MiB}), xmem::ConfigError);
  CHECK_THROWS(Machine({.gc_threshold = 1.0}), xmem::ConfigError);
  CHECK_THROWS(Machine({.memory_fraction = 1.5}), xmem::ConfigError);
  AllocatorOptions three_divisions;
  three_divisions.roundup_divisions[4] = 3;
  CHECK_THROWS(Machine(three_divisions), xmem::ConfigError);
}

TEST(a_rejection_over_the_capacity_frees_nothing) {
  Machine m({.reject_over_capacity = true}, 100_MiB);
  m.free(m.malloc(60_MiB));
  m.events();
  CHECK(m.malloc(70_MiB).is_none());
  CHECK(m.events().empty());
  CHECK_EQUAL(m.statistics().num_oom_rejections, 1);
  CHECK_EQUAL(m.statistics().num_ooms, 0);
  CHECK_EQUAL(m.reserved(), 60_MiB);
}

TEST(a_limit_below_the_capacity_rejects_nothing) {
  Machine m({.memory_fraction = 0.5, .reject_over_capacity = true}, 100_MiB);
  m.free(m.malloc(30_MiB));
  m.events();
  CHECK(!m.malloc(40_MiB).is_none());
  CHECK((m.events() == Events{"segment_free 30@0", "segment_alloc 40@0"}));
  CHECK_EQUAL(m.statistics().num_oom_rejections, 0);
  CHECK_EQUAL(m.statistics().num_alloc_retries, 1);
}

TEST(uses_on_another_stream_end_with_its_work) {
  Machine m({}, 64_MiB);
  const BlockHandle a = m.malloc(16_MiB);
  m.allocator.record_stream(a);
  m.free(a);
  m.events();
  CHECK_EQUAL(m.statistics().active_bytes.all.current, 16_MiB);
  m.allocator.process_events();
  CHECK((m.events() == Events{"free_completed 16@0"}));
  CHECK_EQUAL(m.statistics().active_bytes.all.current, 0);
}

TEST(a_flush_completes_frees_that_wait) {
  Machine m({}, 64_MiB);
  const BlockHandle a = m.malloc(40_MiB);
  m.allocator.record_stream(a, 3);
  m.free(a);
  m.events();
  CHECK(!m.malloc(50_MiB).is_none());
  CHECK((m.events() == Events{"free_completed 40@0", "segment_free 40@0", "segment_alloc 50@0"}));
}

TEST(the_own_stream_of_a_block_does_not_defer_its_free) {
  Machine m;
  const BlockHandle a = m.malloc(16_MiB, 5);
  m.allocator.record_stream(a, 5);
  m.free(a);
  CHECK_EQUAL(m.allocator.active_bytes(), 0);
}

TEST(a_failure_keeps_the_pages_that_were_mapped_before_it) {
  Machine m({.expandable = true}, 60_MiB);
  const BlockHandle a = m.malloc(10_MiB);
  const BlockHandle b = m.malloc(30_MiB);
  m.free(a);
  m.empty_cache();
  m.free(b);
  m.events();
  CHECK(!m.malloc(60_MiB).is_none());
  CHECK_EQUAL(m.reserved(), 60_MiB);
}

// One line a block; equal states print alike.
static std::string describe(const AllocatorState& state) {
  std::string text;
  for (std::size_t b = 0; b < state.block_address.size(); ++b) {
    const auto s = static_cast<std::size_t>(state.block_segment[b]);
    for (const xmem::Bytes value :
         {state.segment_address[s], state.segment_size[s], state.segment_stream[s], state.block_address[b],
          state.block_size[b], state.block_requested[b], xmem::Bytes{state.block_state[b]}}) {
      text += std::to_string(value) + " ";
    }
    text += "\n";
  }
  return text;
}

static void require_restored(const Machine& from, const AllocatorOptions& options) {
  Machine to(options, 4_GiB);
  const AllocatorState state = from.allocator.state();
  to.allocator.restore(state);
  to.allocator.check_invariants();
  CHECK_EQUAL(describe(to.allocator.state()), describe(state));
  CHECK_EQUAL(to.allocated(), from.allocated());
  CHECK_EQUAL(to.reserved(), from.reserved());
}

static void run_random_history(const AllocatorOptions& options, xmem::Bytes capacity, std::uint64_t seed) {
  static const xmem::Bytes kSizes[] = {1_B,    700_B,  512_KiB, 1_MiB,  1_MiB + 1, 3_MiB,     10_MiB - 512,
                                       10_MiB, 11_MiB, 16_MiB,  20_MiB, 33_MiB,    50_MiB + 1};
  std::mt19937_64 random(seed);
  Machine m(options, capacity);
  std::vector<BlockHandle> live;
  std::vector<BlockHandle> waiting;
  for (int step = 0; step < 600; ++step) {
    const auto pick = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
    const std::size_t dice = pick(100);
    const auto is_free = [&](BlockHandle b) {
      return m.allocator.block(b).state != xmem::allocators::BlockState::kPendingFree;
    };
    if (dice < 50) {
      const auto stream = static_cast<std::int64_t>(pick(2)) * 40;
      const BlockHandle block = m.malloc(kSizes[pick(std::size(kSizes))], stream);
      if (!block.is_none()) live.push_back(block);
      // A failed or flushing allocation completes what waits; the numbers may be in use again.
      if (m.statistics().num_sync_all_streams > 0 && !waiting.empty()) std::erase_if(waiting, is_free);
    } else if (dice < 92 && !live.empty()) {
      const std::size_t index = pick(live.size());
      const bool waits = pick(8) == 0;
      if (waits) m.allocator.record_stream(live[index], 17);
      m.free(live[index]);
      if (waits) waiting.push_back(live[index]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    } else if (dice < 97 && !waiting.empty()) {
      if (!is_free(waiting.front())) m.allocator.complete(waiting.front());
      m.allocator.check_invariants();
      waiting.erase(waiting.begin());
    } else if (dice == 99) {
      m.empty_cache();
      waiting.clear();
    }
  }
  require_restored(m, options);
}

TEST(random_histories_keep_every_invariant) {
  std::uint64_t seed = 1;
  for (const TieBreak tie_break : {TieBreak::kAddress, TieBreak::kObjectAge, TieBreak::kSegmentAge}) {
    for (const xmem::Bytes capacity : {120_MiB, 300_MiB, 4_GiB}) {
      run_random_history({.tie_break = tie_break}, capacity, seed++);
      run_random_history({.tie_break = tie_break, .max_split = 32_MiB}, capacity, seed++);
      run_random_history({.tie_break = tie_break, .expandable = true}, capacity, seed++);
      run_random_history({.tie_break = tie_break, .gc_threshold = 0.4, .memory_fraction = 0.8}, capacity, seed++);
    }
  }
}
