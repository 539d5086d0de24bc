#include "runtime/watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "machine/calls.hpp"
#include "machine/ledger.hpp"

namespace xmem::phantom {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What `ProcessGroupNCCL` calls the thread (torch 2.4 to 2.13).
constexpr const char* kName = "pt_nccl_watchdg";
constexpr std::size_t kMostNameBytes = 16;
// It sleeps for 100 ms between two looks.
constexpr milliseconds kOneLook{120};
// While the script gives the GPU nothing to do, any GPU gets done, and the watchdog sees it.
constexpr std::chrono::seconds kLongestPause{5};
// It gives a collective ten minutes by default, and asks for all of them at each look.
constexpr std::int64_t kLongestHiddenNs = 60'000'000'000;
constexpr std::size_t kMostHidden = 10'000;

struct Watchdogs {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> shown{UINT64_MAX};  // events up to this one
  std::mutex mutex;
  std::set<std::uint64_t> hidden;  // events that one has asked for in vain
  std::thread::id last_to_see;     // one of these
  std::uint64_t settled = 0;       // all events up to this one were seen, and what they held was let go of
  std::int64_t launches = -1;      // when one last asked
  steady_clock::time_point last_launch;
};

Watchdogs& watchdogs() {
  static auto* kept = new Watchdogs();
  return *kept;
}

// Callers hold the lock.
bool is_idle(Watchdogs& kept) {
  const auto now = steady_clock::now();
  const auto launches = static_cast<std::int64_t>(slot().launches.load(std::memory_order_relaxed));
  if (launches != kept.launches) {
    kept.launches = launches;
    kept.last_launch = now;
  }
  return now - kept.last_launch > kLongestPause;
}

// Callers hold the lock. Whether someone was refused what may be seen now, and has not asked again.
bool hides_what_is_shown(const Watchdogs& kept) {
  return !kept.hidden.empty() && *kept.hidden.begin() <= kept.shown.load(std::memory_order_relaxed);
}

}  // namespace

std::uint64_t number_of_event() {
  return watchdogs().recorded.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool is_watchdog() {
  thread_local const bool is_one = [] {
    char name[kMostNameBytes] = {};
    return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strcmp(name, kName) == 0;
  }();
  return is_one;
}

bool is_hidden_from_watchdogs(std::uint64_t event_number, std::int64_t age_ns) {
  Watchdogs& kept = watchdogs();
  const std::lock_guard lock(kept.mutex);
  const auto self = std::this_thread::get_id();
  const std::uint64_t shown = kept.shown.load(std::memory_order_relaxed);
  const bool is_enough = age_ns > kLongestHiddenNs || kept.hidden.size() >= kMostHidden;
  if (event_number <= shown || is_enough || is_idle(kept)) {
    if (kept.hidden.erase(event_number) != 0) kept.last_to_see = self;
    return false;
  }
  // It looks at collectives in their order, and is done with one before it asks for the next.
  const bool is_next = kept.last_to_see == self || kept.last_to_see == std::thread::id();
  if (is_next && !hides_what_is_shown(kept)) kept.settled = shown;
  kept.hidden.insert(event_number);
  return true;
}

}  // namespace xmem::phantom

using namespace xmem::phantom;  // NOLINT: what follows is C

PHANTOM_EXPORT std::uint64_t xmem_phantom_recorded_events() {
  return watchdogs().recorded.load(std::memory_order_relaxed);
}

// Kernels that this process has launched so far: how far the script has come, whatever the machine's speed.
PHANTOM_EXPORT std::int64_t xmem_phantom_launched() {
  return static_cast<std::int64_t>(slot().launches.load(std::memory_order_relaxed));
}

// Shows all events up to a number, and hides later ones.
PHANTOM_EXPORT void xmem_phantom_show_watchdogs(std::uint64_t last_event) {
  watchdogs().shown.store(last_event, std::memory_order_relaxed);
}

// Waits until the watchdogs have let go of what they may see now: for one look, and longer if they were refused some of
// it before.
PHANTOM_EXPORT void xmem_phantom_wait_for_watchdogs(std::int64_t most_milliseconds) {
  Watchdogs& kept = watchdogs();
  const std::uint64_t shown = kept.shown.load(std::memory_order_relaxed);
  const auto end = steady_clock::now() + std::max(kOneLook, milliseconds(most_milliseconds));
  std::this_thread::sleep_for(kOneLook);
  const auto is_settled = [&] {
    const std::lock_guard lock(kept.mutex);
    return kept.settled == shown;
  };
  while (!is_settled() && steady_clock::now() < end) std::this_thread::sleep_for(milliseconds(2));
  // An event that nobody asks for any more was recorded again, under another number.
  const std::lock_guard lock(kept.mutex);
  kept.hidden.erase(kept.hidden.begin(), kept.hidden.upper_bound(shown));
  kept.last_to_see = {};
}
