#include "machine/ledger.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
  return (kill(process, 0) == 0 || errno == EPERM) && !is_zombie(process);
}

std::int64_t held(const Slot& slot, int device) {
  const DeviceUse& use = slot.devices[device];
  return use.used_bytes.load(std::memory_order_relaxed) + use.context_bytes.load(std::memory_order_relaxed);
}

Slot* claim_slot() {
  if (shared_ledger != nullptr) {
    for (Slot& candidate : shared_ledger->slots) {
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
  const Slot& own = slot();
  std::int64_t sum = held(own, device);
  if (shared_ledger == nullptr) return sum;
  for (const Slot& other : shared_ledger->slots) {
    const std::int32_t process = other.process.load(std::memory_order_relaxed);
    if (process == 0) break;  // slots are taken in order
    if (&other == &own) continue;
    const std::int64_t bytes = held(other, device);
    if (bytes > 0 && is_alive(process)) sum += bytes;
  }
  return sum;
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
