#include "memory/contents.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "machine/calls.hpp"
#include "memory/address_space.hpp"
#include "memory/host_zeros.hpp"

namespace xmem::phantom {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{1} << 20;  // more is data, which nobody looks at
constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // in all

struct Written {
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<unsigned char>> bytes;  // by device address; never overlapping
  std::size_t total = 0;
  std::atomic<bool> any{false};
};

Written& written() {
  static auto* kept = new Written();
  return *kept;
}

// What small reads of this thread give instead, while somebody who knows better says so.
struct Answer {
  bool given = false;
  std::int64_t value = 0;
};
thread_local Answer answer;

std::uint64_t number(const void* address) {
  return reinterpret_cast<std::uint64_t>(address);
}

void clear(Written& kept) {
  kept.bytes.clear();
  kept.total = 0;
  kept.any.store(false, std::memory_order_relaxed);
}

// Drops what the range overlaps, whole: a part of a fact is none.
void forget(Written& kept, std::uint64_t begin, std::uint64_t end) {
  auto entry = kept.bytes.upper_bound(begin);
  if (entry != kept.bytes.begin() && std::prev(entry)->first + std::prev(entry)->second.size() > begin) --entry;
  while (entry != kept.bytes.end() && entry->first < end) {
    kept.total -= entry->second.size();
    entry = kept.bytes.erase(entry);
  }
}

void remember(Written& kept, std::uint64_t begin, std::vector<unsigned char> bytes) {
  forget(kept, begin, begin + bytes.size());
  if (kept.total + bytes.size() > kMostBytes) clear(kept);
  kept.total += bytes.size();
  kept.bytes[begin] = std::move(bytes);
  kept.any.store(true, std::memory_order_relaxed);
}

// Writes the parts of [begin, begin + size) that are known over `bytes`; returns whether there are any.
bool overlay(const Written& kept, std::uint64_t begin, unsigned char* bytes, std::size_t size) {
  bool found = false;
  auto entry = kept.bytes.upper_bound(begin);
  if (entry != kept.bytes.begin()) --entry;
  for (; entry != kept.bytes.end() && entry->first < begin + size; ++entry) {
    const std::uint64_t from = std::max(begin, entry->first);
    const std::uint64_t to = std::min<std::uint64_t>(begin + size, entry->first + entry->second.size());
    if (from >= to) continue;
    std::memcpy(bytes + (from - begin), entry->second.data() + (from - entry->first), to - from);
    found = true;
  }
  return found;
}

}  // namespace

void host_wrote(void* device_address, const void* bytes, std::size_t size) {
  if (size == 0) return;
  if (size > kSmallBytes) return device_cleared(device_address, size);
  const auto* first = static_cast<const unsigned char*>(bytes);
  Written& kept = written();
  const std::lock_guard lock(kept.mutex);
  remember(kept, number(device_address), {first, first + size});
}

void device_copied(void* target, const void* source, std::size_t size) {
  Written& kept = written();
  if (size == 0 || !kept.any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(kept.mutex);
  if (size > kSmallBytes) {
    forget(kept, number(target), number(target) + size);
    return;
  }
  std::vector<unsigned char> bytes(size, 0);
  if (overlay(kept, number(source), bytes.data(), size))
    remember(kept, number(target), std::move(bytes));
  else
    forget(kept, number(target), number(target) + size);
}

void device_cleared(void* device_address, std::size_t size) {
  Written& kept = written();
  if (!kept.any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(kept.mutex);
  forget(kept, number(device_address), number(device_address) + size);
}

void kernel_launched() {
  Written& kept = written();
  if (!kept.any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(kept.mutex);
  clear(kept);
}

void read_device(void* bytes, const void* device_address, std::size_t size) {
  if (answer.given && size <= sizeof answer.value) {
    std::memcpy(bytes, &answer.value, size);  // little endian: the low bytes
    return;
  }
  write_zeros(bytes, size);
  Written& kept = written();
  if (!kept.any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(kept.mutex);
  overlay(kept, number(device_address), static_cast<unsigned char*>(bytes), size);
}

bool written_by_host(const void* device_address, void* bytes, std::size_t size) {
  Written& kept = written();
  const std::uint64_t begin = number(device_address);
  const std::lock_guard lock(kept.mutex);
  auto entry = kept.bytes.upper_bound(begin);
  if (entry == kept.bytes.begin()) return false;
  --entry;
  if (begin + size > entry->first + entry->second.size()) return false;
  std::memcpy(bytes, entry->second.data() + (begin - entry->first), size);
  return true;
}

void copy(void* target, const void* source, std::size_t size) {
  const bool to_device = device_of(target) >= 0, from_device = device_of(source) >= 0;
  if (to_device && from_device)
    device_copied(target, source, size);
  else if (to_device)
    host_wrote(target, source, size);
  else if (from_device)
    read_device(target, source, size);
  else
    std::memmove(target, source, size);
}

void answer_reads(bool given, std::int64_t value) {
  answer = {given, value};
}

}  // namespace xmem::phantom

// For the Python side of a capture, which knows the line that reads: see capture/child/xmem_child/values.
PHANTOM_EXPORT int xmem_phantom_written(const void* device_address, void* bytes, std::size_t size) {
  return xmem::phantom::written_by_host(device_address, bytes, size) ? 1 : 0;
}

PHANTOM_EXPORT void xmem_phantom_answer(int given, std::int64_t value) {
  xmem::phantom::answer_reads(given != 0, value);
}
