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

inline constexpr std::uint32_t kLedgerVersion = 2;
inline constexpr std::uint32_t kMostProcesses = 512;
inline constexpr std::uint32_t kMostDevices = 120;  // C10_COMPILE_TIME_MAX_GPUS: what one process of PyTorch can have
inline constexpr std::uint32_t kMostFunctions = 4096;
inline constexpr char kLedgerMagic[8] = {'x', 'm', 'e', 'm', 'l', 'd', 'g', 'r'};

// Who asked for device memory.
enum class Use : unsigned {
  kProgram,  // PyTorch's allocator, and whatever else calls CUDA by itself
  kNccl,
  kLibrary,  // work areas that cuFFT and its kin allocate themselves
};
inline constexpr std::uint32_t kUses = 3;

struct DeviceUse {
  std::atomic<std::int64_t> used_bytes;     // mapped device memory, in whole pages, without the context
  std::atomic<std::int64_t> peak_bytes;     // the most of it
  std::atomic<std::int64_t> context_bytes;  // of the context, once there is one
  std::atomic<std::int64_t> has_context;
  std::atomic<std::int64_t> use_bytes[kUses];       // of the used bytes, by `Use`
  std::atomic<std::int64_t> managed_bytes;          // cudaMallocManaged: moves to the host when the card is full
  std::atomic<std::int64_t> managed_peak_bytes;     // the most of it
  std::atomic<std::int64_t> managed_largest_bytes;  // of one allocation
};

// The instant at which the processes of the run held most of a card together.
struct CardPeak {
  std::atomic<std::int32_t> writer;  // the process that is writing it down; 0: none
  std::atomic<std::int32_t> contexts;
  std::atomic<std::int64_t> bytes;  // contexts included
  std::atomic<std::int64_t> context_bytes;
  std::atomic<std::int64_t> use_bytes[kUses];
};

struct Slot {
  std::atomic<std::int32_t> process;    // 0: free; negative: of the program before an `exec` of the process
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
  CardPeak cards[kMostDevices];
  Slot slots[kMostProcesses];
};

// The slot of this process: made at its first call, anew after a fork. Without a ledger file, or when all slots are
// taken, the process keeps its books for itself.
Slot& slot() noexcept;

// This process holds more of a card, or less. Of memory that a process took, `note_peak` keeps the most that all held.
void add_use(int device, Use use, std::int64_t bytes) noexcept;
void add_managed(int device, std::int64_t bytes) noexcept;
void note_peak(int device) noexcept;

// The most that the processes of the run held of a card at once, and their managed memory at its most.
struct CardUse {
  std::int32_t contexts = 0;
  std::int64_t bytes = 0;
  std::int64_t context_bytes = 0;
  std::int64_t use_bytes[kUses] = {};
  std::int64_t managed_bytes = 0;
  std::int64_t managed_largest_bytes = 0;
};
CardUse card_use(int card) noexcept;

// What live processes, this one included, hold of a device with their contexts.
std::int64_t used_by_all(int device) noexcept;

// The same by process, for those that have a context there.
struct ProcessUse {
  std::int32_t process;
  std::int64_t bytes;
};
std::vector<ProcessUse> users_of(int device);

// Kernels that the other live processes have launched.
std::int64_t launches_of_others() noexcept;

}  // namespace xmem::phantom
