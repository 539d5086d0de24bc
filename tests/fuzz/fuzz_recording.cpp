// A recording of the allocator's own run, replayed in full; then with any numbers changed, in its events and in the
// segments beside them: an answer, or a TraceError.
#include "allocators/caching/caching_allocator.hpp"
#include "allocators/device_memory.hpp"
#include "base/error.hpp"
#include "fuzz_target.hpp"
#include "simulation/recording.hpp"
#include "simulation/recording_start.hpp"

using namespace xmem::allocators;
using namespace xmem::simulation;
using xmem::fuzz::require;

namespace {

constexpr std::size_t kMostCalls = 100;

struct Columns {
  std::vector<std::uint8_t> action;
  std::vector<xmem::Bytes> address;
  std::vector<xmem::Bytes> size;
  std::vector<std::int64_t> stream;
  std::vector<std::int32_t> mempool;

  void add(RecordedAction what, xmem::Bytes where, xmem::Bytes how_much, std::int64_t on) {
    action.push_back(static_cast<std::uint8_t>(what));
    address.push_back(where);
    size.push_back(how_much);
    stream.push_back(on);
    mempool.push_back(kDefaultMempool);
  }
  Recording recording() const { return {action, address, size, stream, mempool}; }
};

// Runs calls drawn from the input, and records them as PyTorch does.
AllocatorState record(const AllocatorOptions& options, const DeviceProperties& properties, xmem::fuzz::Bytes& input,
                      Columns& into) {
  SimulatedDevice device(properties);
  CachingAllocator allocator(options, DeviceReference(device));
  std::vector<BlockHandle> live;
  std::size_t seen = 0;
  const auto record_logged = [&] {
    const EventLog& log = allocator.events();
    for (; seen < log.count(); ++seen) {
      into.add(recorded(log.action[seen]), log.address[seen], log.size[seen], log.stream[seen]);
    }
  };
  for (std::size_t call = 0; call < kMostCalls && !input.empty(); ++call) {
    const std::uint8_t what = input.byte() % 16;
    if (what < 9 || live.empty()) {
      const xmem::Bytes size = 1 + static_cast<xmem::Bytes>(input.number(1 + what % 4));
      const BlockHandle block = allocator.allocate(size, what % 2);
      record_logged();
      if (block.is_none()) continue;
      live.push_back(block);
      into.add(RecordedAction::kAlloc, allocator.block(block).address, size, what % 2);
    } else if (what < 15) {
      const std::size_t which = input.below(live.size());
      const Block block = allocator.block(live[which]);
      const std::int64_t stream = allocator.stream_of(live[which]);
      allocator.free(live[which]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      into.add(RecordedAction::kFreeRequested, block.address, block.requested, stream);
      into.add(RecordedAction::kFreeCompleted, block.address, block.requested, stream);
    } else {
      allocator.empty_cache();
      record_logged();
    }
  }
  return allocator.state();
}

template <class T>
void change(std::vector<T>& column, xmem::fuzz::Bytes& input) {
  if (column.empty()) return;
  const std::size_t row = input.below(column.size());
  switch (input.byte() % 4) {
    case 0:
      column[row] = static_cast<T>(input.number(8));
      break;
    case 1:
      column[row] = static_cast<T>(input.size());
      break;
    case 2:
      column[row] = column[input.below(column.size())];
      break;
    default:
      column[row] = static_cast<T>(column[row] + static_cast<T>((input.byte() - 128) * 512));
  }
}

void change_any(Columns& events, AllocatorState& state, xmem::fuzz::Bytes& input) {
  switch (input.byte() % 11) {
    case 0:
      change(events.action, input);
      break;
    case 1:
      change(events.address, input);
      break;
    case 2:
      change(events.size, input);
      break;
    case 3:
      change(events.stream, input);
      break;
    case 4:
      change(state.segment_address, input);
      break;
    case 5:
      change(state.segment_size, input);
      break;
    case 6:
      change(state.segment_expandable, input);
      break;
    case 7:
      change(state.block_size, input);
      break;
    case 8:
      change(state.block_requested, input);
      break;
    case 9:
      change(state.block_state, input);
      break;
    default:
      change(state.segment_pool, input);
  }
}

// An expandable range that an out of memory left without a page is at a place that no event names.
void require_replayed(const Columns& events, const AllocatorOptions& options, const DeviceProperties& device) {
  if (std::ranges::count(events.action, static_cast<std::uint8_t>(RecordedAction::kOutOfMemory)) > 0) return;
  const auto replayed = replay_recording(events.recording(), options, AllocatorState(), device.capacity);
  require(!replayed.difference, "the allocator agrees with its own recording");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  xmem::fuzz::Bytes input(data, size);
  AllocatorOptions options;
  options.expandable = input.flag();
  DeviceProperties device;
  device.capacity = xmem::Bytes{1} << (21 + input.byte() % 20);
  const std::size_t changes = input.byte() % 8;
  Columns events;
  AllocatorState end = record(options, device, input, events);
  if (changes == 0) require_replayed(events, options, device);
  for (std::size_t i = 0; i < changes; ++i) change_any(events, end, input);
  try {
    check_state(end);
    const AllocatorState start = state_before(events.recording(), options, end);
    check_state(start);
    replay_recording(events.recording(), options, start, device.capacity);
    replay_recording(events.recording(), options, end, device.capacity);
  } catch (const xmem::TraceError&) {
    // trace and segments do not belong together
  } catch (const std::logic_error& error) {
    // Debug builds check that segments are as PyTorch cuts them; those of a changed file need not be.
    require(changes > 0, error.what());
    require(std::string_view(error.what()).find("the events that explain them") == std::string_view::npos,
            error.what());
  }
  return 0;
}
