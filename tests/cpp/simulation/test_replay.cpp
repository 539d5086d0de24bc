#include "base/error.hpp"
#include "simulation/replay.hpp"
#include "testing.hpp"

using namespace xmem::simulation;
using namespace xmem::literals;
using xmem::Bytes;

namespace {

struct Script {  // blocks 0, 1, 2, ... of these sizes; requests such as {+1} are written as kind and block
  std::vector<Bytes> size;
  std::vector<std::uint8_t> kind;
  std::vector<std::int32_t> block;

  Replay run(const ReplayOptions& options = {}) const {
    const std::vector<std::int64_t> stream(size.size(), 0);
    return replay({kind, block, size, stream}, options);
  }
};

ReplayOptions on_device(Bytes capacity, OnOutOfMemory on_out_of_memory = OnOutOfMemory::kStop) {
  ReplayOptions options;
  options.device.capacity = capacity;
  options.on_out_of_memory = on_out_of_memory;
  return options;
}

}  // namespace

TEST(gauges_are_those_after_each_request) {
  const Replay r = Script{{10_MiB, 100}, {0, 0, 1}, {0, 1, 0}}.run();
  CHECK((r.timeline.allocated == std::vector<Bytes>{10_MiB, 10_MiB + 512, 512}));
  CHECK((r.timeline.requested == std::vector<Bytes>{10_MiB, 10_MiB + 100, 100}));
  CHECK((r.timeline.reserved == std::vector<Bytes>{10_MiB, 12_MiB, 12_MiB}));
  CHECK_EQUAL(r.peaks.allocated.bytes, 10_MiB + 512);
  CHECK_EQUAL(r.peaks.allocated.request, 1);
  CHECK_EQUAL(r.peaks.reserved.request, 1);
  CHECK((r.event_request == std::vector<std::int64_t>{0, 1}));
  CHECK((r.placement.size == std::vector<Bytes>{10_MiB, 512}));
}

TEST(a_replay_stops_at_the_first_request_out_of_memory) {
  const Replay r = Script{{40_MiB, 70_MiB, 1_MiB}, {0, 0, 0}, {0, 1, 2}}.run(on_device(100_MiB));
  CHECK_EQUAL(r.failures.size(), 1U);
  CHECK_EQUAL(r.failures[0].request, 1);
  CHECK_EQUAL(r.failures[0].requested_bytes, 70_MiB);
  CHECK_EQUAL(r.failures[0].device_free_bytes, 60_MiB);
  CHECK_EQUAL(r.timeline.reserved.size(), 2U);
  CHECK_EQUAL(r.placement.address[1], -1);
}

TEST(a_replay_may_drop_what_fails_and_go_on) {
  const Script script{{40_MiB, 70_MiB, 60_MiB}, {0, 0, 0, 1, 1}, {0, 1, 2, 1, 0}};
  const Replay r = script.run(on_device(100_MiB, OnOutOfMemory::kDrop));
  CHECK_EQUAL(r.failures.size(), 1U);
  CHECK((r.timeline.allocated == std::vector<Bytes>{40_MiB, 40_MiB, 100_MiB, 100_MiB, 60_MiB}));
}

TEST(the_state_can_be_had_at_any_request) {
  const Script script{{10_MiB, 100}, {0, 0, 1}, {0, 1, 0}};
  ReplayOptions options;
  options.until = 1;
  const Replay r = script.run(options);
  CHECK_EQUAL(r.timeline.reserved.size(), 2U);
  CHECK((r.state_block == std::vector<std::int32_t>{0, 1, -1}));
  options.until = -1;
  CHECK(script.run(options).state.segment_address.empty());
  options.until = 3;
  CHECK_THROWS(script.run(options), xmem::ConfigError);
}

TEST(requests_that_do_not_fit_together_are_refused) {
  CHECK_THROWS((Script{{8}, {1}, {0}}.run()), xmem::ConfigError);        // freed before it lives
  CHECK_THROWS((Script{{8}, {0, 0}, {0, 0}}.run()), xmem::ConfigError);  // allocated twice
  CHECK_THROWS((Script{{8}, {0}, {1}}.run()), xmem::ConfigError);        // no such block
  CHECK_THROWS((Script{{8}, {0}, {-1}}.run()), xmem::ConfigError);
  CHECK_THROWS((Script{{0}, {0}, {0}}.run()), xmem::ConfigError);
  CHECK_THROWS((Script{{8}, {7}, {0}}.run()), xmem::ConfigError);
  CHECK_THROWS((Script{{8}, {0, 1}, {0}}.run()), xmem::ConfigError);
}
