#include "memory/host_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "machine/ledger.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom {
namespace {

struct Entry {
  HostBlock block;
  bool ours;  // mapped here, not merely registered
};

struct Blocks {
  std::mutex mutex;
  std::map<std::uintptr_t, Entry> by_address;
};

Blocks& blocks() {
  static auto* kept = new Blocks();  // never destroyed: freed from exit handlers
  return *kept;
}

// On the card while a kernel works on it, as far as there is room.
void count_managed(int device, std::int64_t bytes) {
  if (machine().has(device)) add_managed(static_cast<int>(machine().card(device)), bytes);
}

std::uintptr_t number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

int allocate_host(std::size_t size, MemoryType type, void** address) {
  *address = nullptr;
  if (size == 0) return kSuccess;
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return kOutOfMemory;
  Blocks& kept = blocks();
  const std::lock_guard lock(kept.mutex);
  const int device = current_device();
  kept.by_address[number(map)] = {{type, device, map, size}, true};
  if (type == kTypeManaged) count_managed(device, static_cast<std::int64_t>(size));
  *address = map;
  return kSuccess;
}

int register_host(void* address, std::size_t size) {
  Blocks& kept = blocks();
  const std::lock_guard lock(kept.mutex);
  const bool added =
      kept.by_address.insert({number(address), {{kTypeHost, current_device(), address, size}, false}}).second;
  return added ? kSuccess : kHostMemoryAlreadyRegistered;
}

bool release_host(void* address) {
  Blocks& kept = blocks();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_address.find(number(address));
  if (found == kept.by_address.end() || !found->second.ours) return false;
  const HostBlock& block = found->second.block;
  if (block.type == kTypeManaged) count_managed(block.device, -static_cast<std::int64_t>(block.size));
  munmap(address, block.size);
  kept.by_address.erase(found);
  return true;
}

bool unregister_host(void* address) {
  Blocks& kept = blocks();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_address.find(number(address));
  if (found == kept.by_address.end() || found->second.ours) return false;
  kept.by_address.erase(found);
  return true;
}

bool host_block_of(const void* address, HostBlock* block) {
  Blocks& kept = blocks();
  const std::lock_guard lock(kept.mutex);
  auto found = kept.by_address.upper_bound(number(address));
  if (found == kept.by_address.begin()) return false;
  --found;
  if (number(address) >= found->first + found->second.block.size) return false;
  *block = found->second.block;
  return true;
}

}  // namespace xmem::phantom
