#include "machine/ledger.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

#include "machine/calls.hpp"
#include "machine/last_error.hpp"

namespace xmem::phantom {
namespace {

Ledger* shared_ledger = nullptr;
std::atomic<Slot*> own_slot{nullptr};
std::once_flag opened;

void open_ledger() {
  const char* folder = std::getenv("XMEM_PHANTOM");
  if (folder == nullptr) return;
  const int file = open((std::string(folder) + "/ledger").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  struct stat status{};
  if (fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(Ledger))) {
    void* map = mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) {
      auto* ledger = static_cast<Ledger*>(map);
      const bool ours = std::memcmp(ledger->magic, kLedgerMagic, sizeof kLedgerMagic) == 0 &&
                        ledger->version == kLedgerVersion && ledger->slot_bytes == sizeof(Slot);
      if (ours) shared_ledger = ledger;
    }
  }
  close(file);
}

// A process that ended holds nothing any more, also while its parent has not yet asked for its status.
bool is_zombie(std::int32_t process) {
  char path[32], line[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t length = read(file, line, sizeof line - 1);
  close(file);
  line[length > 0 ? length : 0] = '\0';
  const char* after_name = std::strrchr(line, ')');  // the name may hold anything
  return after_name != nullptr && (std::strncmp(after_name, ") Z", 3) == 0 || std::strncmp(after_name, ") X", 3) == 0);
}

bool is_alive(std::int32_t process) {
  return process > 0 && (kill(process, 0) == 0 || errno == EPERM) && !is_zombie(process);
}

std::int64_t held(const Slot& slot, int device) {
  const DeviceUse& use = slot.devices[device];
  return use.used_bytes.load() + use.context_bytes.load();
}

void raise(std::atomic<std::int64_t>& most, std::int64_t bytes) {
  std::int64_t known = most.load();
  while (bytes > known && !most.compare_exchange_weak(known, bytes)) {
  }
}

Slot* claim_slot() {
  if (shared_ledger != nullptr) {
    for (Slot& candidate : shared_ledger->slots) {
      // Of the program that this process ran before `exec`, whose memory is gone; 0 would end the search for holders.
      std::int32_t own = getpid();
      if (candidate.process.compare_exchange_strong(own, -own)) continue;
      std::int32_t free = 0;
      if (candidate.process.load(std::memory_order_relaxed) == 0 &&
          candidate.process.compare_exchange_strong(free, getpid())) {
        candidate.last_call.store(-1);
        return &candidate;
      }
    }
  }
  auto* own = new (std::nothrow) Slot();
  static Slot last_resort;
  Slot* slot = own != nullptr ? own : &last_resort;
  slot->process.store(getpid());
  slot->last_call.store(-1);
  return slot;
}

// Calls `visit` for the slot of every live process that holds memory of a device, this one's first.
template <typename Visit>
void for_each_holder(int device, Visit visit) noexcept {
  const Slot& own = slot();
  visit(own);
  if (shared_ledger == nullptr) return;
  for (const Slot& other : shared_ledger->slots) {
    const std::int32_t process = other.process.load(std::memory_order_relaxed);
    if (process == 0) break;  // slots are taken in order
    if (&other != &own && held(other, device) > 0 && is_alive(process)) visit(other);
  }
}

// One writer at a time, over all processes; one that died with the lock, or stopped for long, does not keep it.
class CardLock {
 public:
  explicit CardLock(std::atomic<std::int32_t>& writer) noexcept : writer_(writer) {
    for (int tries = 0; tries < kMostTries; ++tries) {
      std::int32_t none = 0;
      if (writer_.compare_exchange_strong(none, getpid())) return;
      sched_yield();
    }
    writer_.store(getpid());
  }
  ~CardLock() { writer_.store(0); }
  CardLock(const CardLock&) = delete;
  CardLock& operator=(const CardLock&) = delete;

 private:
  static constexpr int kMostTries = 10000;
  std::atomic<std::int32_t>& writer_;
};

void forget_after_fork() {
  own_slot.store(nullptr);
}

Slot& claim_once() noexcept {
  static std::mutex mutex;
  std::call_once(opened, [] {
    open_ledger();
    pthread_atfork(nullptr, nullptr, forget_after_fork);
  });
  const std::lock_guard lock(mutex);
  Slot* slot = own_slot.load();
  if (slot == nullptr) {
    slot = claim_slot();
    own_slot.store(slot);
  }
  return *slot;
}

}  // namespace

Slot& slot() noexcept {
  Slot* slot = own_slot.load(std::memory_order_acquire);
  return slot != nullptr ? *slot : claim_once();
}

std::int64_t used_by_all(int device) noexcept {
  std::int64_t sum = 0;
  for_each_holder(device, [&](const Slot& holder) { sum += held(holder, device); });
  return sum;
}

void add_use(int device, Use use, std::int64_t bytes) noexcept {
  DeviceUse& own = slot().devices[device];
  own.use_bytes[static_cast<unsigned>(use)].fetch_add(bytes);
  raise(own.peak_bytes, own.used_bytes.fetch_add(bytes) + bytes);
}

void add_managed(int device, std::int64_t bytes) noexcept {
  DeviceUse& own = slot().devices[device];
  raise(own.managed_largest_bytes, bytes);
  raise(own.managed_peak_bytes, own.managed_bytes.fetch_add(bytes) + bytes);
}

// Every process adds before it looks, so of two that take memory at once the later one sees the sum.
void note_peak(int device) noexcept {
  if (shared_ledger == nullptr) return;
  CardPeak& peak = shared_ledger->cards[device];
  if (used_by_all(device) <= peak.bytes.load()) return;
  const CardLock lock(peak.writer);
  std::int64_t context_bytes = 0, uses[kUses] = {}, bytes = 0;
  std::int32_t contexts = 0;
  for_each_holder(device, [&](const Slot& holder) {
    const DeviceUse& use = holder.devices[device];
    contexts += use.has_context.load() != 0 ? 1 : 0;
    context_bytes += use.context_bytes.load();
    bytes += held(holder, device);
    for (unsigned i = 0; i < kUses; ++i) uses[i] += use.use_bytes[i].load();
  });
  if (bytes <= peak.bytes.load()) return;
  peak.contexts.store(contexts);
  peak.context_bytes.store(context_bytes);
  for (unsigned i = 0; i < kUses; ++i) peak.use_bytes[i].store(uses[i]);
  peak.bytes.store(bytes);
}

CardUse card_use(int card) noexcept {
  CardUse found;
  if (shared_ledger == nullptr) return found;
  const CardPeak& peak = shared_ledger->cards[card];
  found.contexts = peak.contexts.load();
  found.bytes = peak.bytes.load();
  found.context_bytes = peak.context_bytes.load();
  for (unsigned i = 0; i < kUses; ++i) found.use_bytes[i] = peak.use_bytes[i].load();
  for (const Slot& user : shared_ledger->slots) {
    if (user.process.load(std::memory_order_relaxed) == 0) break;
    const DeviceUse& use = user.devices[card];
    found.managed_bytes += use.managed_peak_bytes.load();
    found.managed_largest_bytes = std::max(found.managed_largest_bytes, use.managed_largest_bytes.load());
  }
  return found;
}

std::int64_t launches_of_others() noexcept {
  std::int64_t launches = 0;
  if (shared_ledger == nullptr) return launches;
  const Slot& own = slot();
  for (const Slot& other : shared_ledger->slots) {
    const std::int32_t process = other.process.load(std::memory_order_relaxed);
    if (process == 0) break;
    if (&other != &own && is_alive(process)) launches += other.launches.load(std::memory_order_relaxed);
  }
  return launches;
}

std::vector<ProcessUse> users_of(int device) {
  const Slot& own = slot();
  std::vector<ProcessUse> users;
  const auto add = [&](const Slot& user) {
    const std::int32_t process = user.process.load(std::memory_order_relaxed);
    if (user.devices[device].has_context.load(std::memory_order_relaxed) == 0) return;
    if (&user == &own || is_alive(process)) users.push_back({process, held(user, device)});
  };
  if (shared_ledger == nullptr) {
    add(own);
    return users;
  }
  for (const Slot& user : shared_ledger->slots) {
    if (user.process.load(std::memory_order_relaxed) == 0) break;
    add(user);
  }
  return users;
}

void note(Function function) noexcept {
  Slot& own = slot();
  own.last_call.store(static_cast<std::int32_t>(function), std::memory_order_relaxed);
  own.calls[static_cast<unsigned>(function)].fetch_add(1, std::memory_order_relaxed);
}

int refuse(Function function, int error) noexcept {
  note(function);
  return error;
}

int refuse_by_runtime(Function function, int error) noexcept {
  note(function);
  return fail(error);
}

}  // namespace xmem::phantom
