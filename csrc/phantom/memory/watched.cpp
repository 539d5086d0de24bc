#include "memory/watched.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "machine/calls.hpp"

namespace xmem::phantom {
namespace {

constexpr std::int32_t kMostRanges = 1 << 16;

struct Range {
  std::uint64_t end;
  std::int32_t number;
};

struct Watched {
  std::mutex mutex;
  std::map<std::uint64_t, Range> ranges;           // by first address; the latest counts where two begin there
  std::array<std::uint64_t, kMostRanges> begin{};  // by number
  std::vector<std::int32_t> unused;
  std::int32_t used = 0;
  std::atomic<std::int32_t> count{0};
  std::array<unsigned char, kMostRanges> touched{};  // by number; read by Python without the lock
};

Watched& watched() {
  static auto* kept = new Watched();  // never destroyed: kernels are launched from exit handlers
  return *kept;
}

// Ranges do not overlap but for memory that was freed and is watched again before its first range ended.
void touch(Watched& kept, std::uint64_t address) {
  auto found = kept.ranges.upper_bound(address);
  if (found == kept.ranges.begin()) return;
  --found;
  if (address < found->second.end) kept.touched[static_cast<std::size_t>(found->second.number)] = 1;
}

}  // namespace

bool anything_watched() {
  return watched().count.load(std::memory_order_relaxed) > 0;
}

void argument_may_write(const void* bytes, std::size_t size) {
  Watched& kept = watched();
  const std::lock_guard lock(kept.mutex);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= size; at += sizeof(std::uint64_t)) {
    std::uint64_t value = 0;
    std::memcpy(&value, static_cast<const char*>(bytes) + at, sizeof value);
    touch(kept, value);
  }
}

void anything_may_be_written() {
  Watched& kept = watched();
  const std::lock_guard lock(kept.mutex);
  for (const auto& [begin, range] : kept.ranges) kept.touched[static_cast<std::size_t>(range.number)] = 1;
}

void result_is_written(const void* result) {
  if (anything_watched()) argument_may_write(&result, sizeof result);
}

}  // namespace xmem::phantom

using namespace xmem::phantom;  // NOLINT: what follows is C

// Returns the number of the range, -1 where too many are watched or the range is empty.
PHANTOM_EXPORT std::int32_t xmem_phantom_watch(std::uint64_t address, std::uint64_t size) {
  Watched& kept = watched();
  const std::lock_guard lock(kept.mutex);
  if (size == 0 || (kept.unused.empty() && kept.used == kMostRanges)) return -1;
  std::int32_t number = 0;
  if (kept.unused.empty()) {
    number = kept.used++;
  } else {
    number = kept.unused.back();
    kept.unused.pop_back();
  }
  const auto place = static_cast<std::size_t>(number);
  kept.touched[place] = 0;
  kept.begin[place] = address;
  kept.ranges[address] = {address + size, number};
  kept.count.fetch_add(1, std::memory_order_relaxed);
  return number;
}

PHANTOM_EXPORT void xmem_phantom_unwatch(std::int32_t number) {
  Watched& kept = watched();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.ranges.find(kept.begin[static_cast<std::size_t>(number)]);
  if (found != kept.ranges.end() && found->second.number == number) kept.ranges.erase(found);
  kept.unused.push_back(number);
  kept.count.fetch_sub(1, std::memory_order_relaxed);
}

// One byte for each number, not 0 once the range may have been written to.
PHANTOM_EXPORT const unsigned char* xmem_phantom_touched(std::int32_t* count) {
  *count = kMostRanges;
  return watched().touched.data();
}
