#include "runtime/graph_memory.hpp"

#include <map>
#include <mutex>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/device_memory.hpp"

namespace xmem::phantom {
namespace {

struct Pool {
  std::map<std::uint64_t, std::uint64_t> live;  // pages of what is allocated, by address
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
};

struct Pools {
  std::mutex mutex;
  std::map<int, Pool> by_device;
};

Pools& pools() {
  static auto* kept = new Pools();  // never destroyed: graphs are destroyed from exit handlers
  return *kept;
}

int allocate_in(Pool& pool, int device, const MemoryNode& node) {
  const std::uint64_t pages = whole_pages(node.size);
  if (!pool.live.insert({node.address, pages}).second) return kSuccess;  // launched again without a free
  if (pool.used + pages > pool.reserved) {
    const std::uint64_t more = pool.used + pages - pool.reserved;
    if (const int error = take_pages(device, more); error != kSuccess) {
      pool.live.erase(node.address);
      return error;
    }
    pool.reserved += more;
  }
  pool.used += pages;
  return kSuccess;
}

}  // namespace

int launch_memory(const std::vector<MemoryNode>& nodes) {
  if (nodes.empty()) return kSuccess;
  Pools& kept = pools();
  const std::lock_guard lock(kept.mutex);
  for (const MemoryNode& node : nodes) {
    const int device = device_of(reinterpret_cast<const void*>(node.address));
    Pool& pool = kept.by_device[device];
    if (node.size > 0) {
      if (const int error = allocate_in(pool, device, node); error != kSuccess) return error;
    } else if (const auto freed = pool.live.find(node.address); freed != pool.live.end()) {
      pool.used -= freed->second;
      pool.live.erase(freed);
    }
  }
  return kSuccess;
}

void trim_graph_memory(int device) {
  Pools& kept = pools();
  const std::lock_guard lock(kept.mutex);
  Pool& pool = kept.by_device[device];
  if (pool.reserved > pool.used) give_pages(device, pool.reserved - pool.used);
  pool.reserved = pool.used;
}

}  // namespace xmem::phantom

using namespace xmem::phantom;  // NOLINT: what follows is C

PHANTOM_EXPORT int cudaDeviceGraphMemTrim(int device) {
  note(Function::cudaDeviceGraphMemTrim);
  if (!machine().has(device)) return fail(kInvalidDevice);
  trim_graph_memory(device);
  return kSuccess;
}
