// Recordings written by hand in the grammar of PyTorch's traces; addresses are small for the eye.
#include "base/error.hpp"
#include "simulation/recording.hpp"
#include "simulation/recording_start.hpp"
#include "testing.hpp"

using namespace xmem::simulation;
using namespace xmem::literals;
using xmem::Bytes;
using Do = RecordedAction;

namespace {

struct Tape {
  std::vector<std::uint8_t> action;
  std::vector<Bytes> address;
  std::vector<Bytes> size;
  std::vector<std::int64_t> stream;
  std::vector<std::int32_t> mempool;

  Tape& add(Do what, Bytes where, Bytes how_much, std::int64_t on = 0, std::int32_t in = 0) {
    action.push_back(static_cast<std::uint8_t>(what));
    address.push_back(where);
    size.push_back(how_much);
    stream.push_back(on);
    mempool.push_back(in);
    return *this;
  }
  Recording recording() const { return {action, address, size, stream, mempool}; }
  RecordingReplay replay(const xmem::allocators::AllocatorState& start = {},
                         const xmem::allocators::AllocatorOptions& options = {}) const {
    return replay_recording(recording(), options, start, 1_GiB);
  }
};

constexpr Bytes kBase = Bytes{1} << 30;

}  // namespace

TEST(a_recording_that_follows_the_rules_agrees) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 20_MiB).add(Do::kAlloc, kBase, 3_MiB).add(Do::kAlloc, kBase + 3_MiB, 4_MiB);
  tape.add(Do::kOther, 0, 0);
  tape.add(Do::kFreeRequested, kBase, 3_MiB).add(Do::kFreeCompleted, kBase, 3_MiB).add(Do::kAlloc, kBase, 2_MiB);
  const RecordingReplay r = tape.replay();
  CHECK(!r.difference);
  CHECK_EQUAL(r.reserved.size(), tape.action.size());
  CHECK_EQUAL(r.reserved.back(), 20_MiB);
}

TEST(the_first_difference_is_named) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 20_MiB).add(Do::kAlloc, kBase, 3_MiB).add(Do::kAlloc, kBase + 9_MiB, 4_MiB);
  const RecordingReplay r = tape.replay();
  CHECK_EQUAL(r.difference->event, 2);
  CHECK_EQUAL(r.difference->address, kBase + 3_MiB);
}

TEST(a_segment_of_a_wrong_size_is_a_difference) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 22_MiB).add(Do::kAlloc, kBase, 3_MiB);
  CHECK(tape.replay().difference->action == Do::kOutOfMemory);
}

TEST(a_free_that_waits_completes_where_the_recording_says) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 16_MiB).add(Do::kAlloc, kBase, 16_MiB);
  tape.add(Do::kFreeRequested, kBase, 16_MiB);
  tape.add(Do::kSegmentAlloc, kBase + 32_MiB, 16_MiB).add(Do::kAlloc, kBase + 32_MiB, 16_MiB);
  tape.add(Do::kFreeCompleted, kBase, 16_MiB).add(Do::kAlloc, kBase, 16_MiB);
  CHECK(!tape.replay().difference);
}

TEST(a_flush_and_an_out_of_memory_are_followed) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 40_MiB).add(Do::kAlloc, kBase, 40_MiB);
  tape.add(Do::kFreeRequested, kBase, 40_MiB).add(Do::kFreeCompleted, kBase, 40_MiB);
  tape.add(Do::kSegmentFree, kBase, 40_MiB).add(Do::kOutOfMemory, 60_MiB, 80_MiB);
  const RecordingReplay r = tape.replay();
  CHECK(!r.difference);
  CHECK_EQUAL(r.statistics.num_ooms, 1);
  CHECK_EQUAL(r.reserved.back(), 0);
}

TEST(an_emptied_cache_is_told_from_a_flush) {
  Tape tape;
  tape.add(Do::kSegmentAlloc, kBase, 16_MiB).add(Do::kAlloc, kBase, 16_MiB);
  tape.add(Do::kFreeRequested, kBase, 16_MiB).add(Do::kFreeCompleted, kBase, 16_MiB);
  tape.add(Do::kSegmentFree, kBase, 16_MiB);  // though the cache would have served what follows
  tape.add(Do::kSegmentAlloc, kBase + 64_MiB, 16_MiB).add(Do::kAlloc, kBase + 64_MiB, 16_MiB);
  tape.add(Do::kFreeRequested, kBase + 64_MiB, 16_MiB).add(Do::kFreeCompleted, kBase + 64_MiB, 16_MiB);
  tape.add(Do::kSegmentFree, kBase + 64_MiB, 16_MiB);
  CHECK(!tape.replay().difference);
}

TEST(pages_of_an_expandable_segment_are_followed) {
  Tape tape;
  tape.add(Do::kSegmentMap, kBase, 40_MiB).add(Do::kAlloc, kBase, 30_MiB);
  tape.add(Do::kSegmentMap, kBase + 40_MiB, 20_MiB).add(Do::kAlloc, kBase + 30_MiB, 15_MiB);
  tape.add(Do::kFreeRequested, kBase, 30_MiB).add(Do::kFreeCompleted, kBase, 30_MiB);
  tape.add(Do::kSegmentUnmap, kBase, 20_MiB);
  const RecordingReplay r = tape.replay({}, {.expandable = true});
  CHECK(!r.difference);
  CHECK_EQUAL(r.reserved.back(), 40_MiB);
}

TEST(the_start_of_a_recording_is_found_backwards) {
  // Before it: a segment of 20 MiB with 3 MiB in use at its front. The tape frees them and uses the place again.
  Tape tape;
  tape.add(Do::kFreeRequested, kBase, 3_MiB).add(Do::kFreeCompleted, kBase, 3_MiB);
  tape.add(Do::kAlloc, kBase, 18_MiB + 1);
  tape.add(Do::kFreeRequested, kBase, 18_MiB + 1).add(Do::kFreeCompleted, kBase, 18_MiB + 1);
  xmem::allocators::AllocatorState end;
  end.segment_address = {kBase};
  end.segment_size = {20_MiB};
  end.segment_stream = {0};
  end.segment_pool = {1};
  end.segment_expandable = {0};
  end.segment_mempool = {0};
  end.segment_id = {0};
  end.block_segment = {0};
  end.block_address = {kBase};
  end.block_size = {20_MiB};
  end.block_requested = {0};
  end.block_state = {0};
  const auto start = state_before(tape.recording(), {}, end);
  CHECK((start.block_size == std::vector<Bytes>{3_MiB, 17_MiB}));
  CHECK((start.block_state == std::vector<std::uint8_t>{1, 0}));
  CHECK(!tape.replay(start).difference);

  Tape foreign;
  foreign.add(Do::kAlloc, kBase, 3_MiB);
  CHECK_THROWS(state_before(foreign.recording(), {}, end), xmem::TraceError);
}
