// The ledger: a file that all processes of a run map, with a slot each. It tells the processes how much of a card the
// others hold, and the parent what happened, even when a process was killed.
//
// `xmem.phantom.ledger` in Python reads the same layout; kLedgerVersion goes up with every change of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "surface.hpp"

namespace xmem::phantom {

inline constexpr std::uint32_t kLedgerVersion = 1;
inline constexpr std::uint32_t kMostProcesses = 512;
inline constexpr std::uint32_t kMostDevices = 64;
inline constexpr std::uint32_t kMostFunctions = 4096;
inline constexpr char kLedgerMagic[8] = {'x', 'm', 'e', 'm', 'l', 'd', 'g', 'r'};

struct DeviceUse {
  std::atomic<std::int64_t> used_bytes;     // mapped device memory, in whole pages, without the context
  std::atomic<std::int64_t> peak_bytes;     // the most of it
  std::atomic<std::int64_t> context_bytes;  // of the context, once there is one
  std::atomic<std::int64_t> has_context;
};

struct Slot {
  std::atomic<std::int32_t> process;    // 0: free
  std::atomic<std::int32_t> last_call;  // a Function, -1: none yet
  std::atomic<std::int64_t> launches;
  DeviceUse devices[kMostDevices];
  std::atomic<std::uint32_t> calls[kMostFunctions];
};

struct Ledger {
  char magic[8];
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t slot_bytes;
  Slot slots[kMostProcesses];
};

// The slot of this process: made at its first call, anew after a fork. Without a ledger file, or when all slots are
// taken, the process keeps its books for itself.
Slot& slot() noexcept;

// What live processes, this one included, hold of a device with their contexts.
std::int64_t used_by_all(int device) noexcept;

// The same by process, for those that have a context there.
struct ProcessUse {
  std::int32_t process;
  std::int64_t bytes;
};
std::vector<ProcessUse> users_of(int device);

}  // namespace xmem::phantom
