#include "memory/device_memory.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "machine/ledger.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"

namespace xmem::phantom {
namespace {

struct Allocation {
  std::uint64_t size;
  Use use;
};

struct Books {
  std::mutex mutex;
  std::vector<std::unique_ptr<AddressRanges>> ranges;  // by device
  std::map<std::uint64_t, Allocation> allocations;     // by address

  AddressRanges& of(int device) {
    const auto index = static_cast<unsigned>(device);
    if (ranges.size() <= index) ranges.resize(index + 1);
    if (ranges[index] == nullptr) ranges[index] = std::make_unique<AddressRanges>(device);
    return *ranges[index];
  }
};

Books& books() {
  static auto* kept = new Books();  // never destroyed: PyTorch frees memory from exit handlers
  return *kept;
}

}  // namespace

int take_pages(int device, std::uint64_t size, Use use) {
  ensure_context(device);
  const int card = static_cast<int>(machine().card(device));
  const auto pages = static_cast<std::int64_t>(whole_pages(size));
  if (pages < 0 || pages > machine().device(device).limit_bytes - used_by_all(card)) return kOutOfMemory;
  add_use(card, use, pages);
  note_peak(card);
  return kSuccess;
}

void give_pages(int device, std::uint64_t size, Use use) {
  add_use(static_cast<int>(machine().card(device)), use, -static_cast<std::int64_t>(whole_pages(size)));
}

int allocate(int device, std::uint64_t size, void** address, Use use) {
  *address = nullptr;
  if (size == 0) return kSuccess;
  if (!machine().has(device)) return kInvalidDevice;
  Books& kept = books();
  const std::lock_guard lock(kept.mutex);
  if (const int error = take_pages(device, size, use); error != kSuccess) return error;
  const std::uint64_t begin = kept.of(device).reserve(whole_pages(size));
  if (begin == 0) {
    give_pages(device, size, use);
    return kOutOfMemory;
  }
  kept.allocations[begin] = {size, use};
  *address = reinterpret_cast<void*>(begin);
  return kSuccess;
}

int release(void* address) {
  if (address == nullptr) return kSuccess;
  Books& kept = books();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.allocations.find(reinterpret_cast<std::uint64_t>(address));
  if (found == kept.allocations.end()) return kInvalidValue;
  const int device = device_of(address);
  give_pages(device, found->second.size, found->second.use);
  kept.of(device).release(found->first, whole_pages(found->second.size));
  kept.allocations.erase(found);
  return kSuccess;
}

int reserve_addresses(int device, std::uint64_t size, std::uint64_t alignment, void** address) {
  if (!machine().has(device)) return kInvalidDevice;
  Books& kept = books();
  const std::lock_guard lock(kept.mutex);
  const std::uint64_t begin = kept.of(device).reserve(whole_pages(size), alignment);
  *address = reinterpret_cast<void*>(begin);
  return begin == 0 ? kOutOfMemory : kSuccess;
}

int release_addresses(void* address, std::uint64_t size) {
  const int device = device_of(address);
  if (device < 0) return kInvalidValue;
  Books& kept = books();
  const std::lock_guard lock(kept.mutex);
  kept.of(device).release(reinterpret_cast<std::uint64_t>(address), whole_pages(size));
  return kSuccess;
}

bool allocation_of(const void* address, std::uint64_t* base, std::uint64_t* size) {
  Books& kept = books();
  const std::lock_guard lock(kept.mutex);
  const auto at = reinterpret_cast<std::uint64_t>(address);
  auto found = kept.allocations.upper_bound(at);
  if (found == kept.allocations.begin()) return false;
  --found;
  if (at >= found->first + found->second.size) return false;
  *base = found->first;
  *size = found->second.size;
  return true;
}

std::int64_t free_bytes(int device) {
  const std::int64_t used = used_by_all(static_cast<int>(machine().card(device)));
  return std::max<std::int64_t>(machine().device(device).total_memory_bytes - used, 0);
}

}  // namespace xmem::phantom
