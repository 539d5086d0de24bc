// Stream-ordered allocation (cudaMallocAsync): a pool for each device that grows in chunks, reuses what was freed, and
// gives back what exceeds its release threshold when a device or stream is synchronized or the pool is trimmed.
//
// Approximate: NVIDIA does not document how a pool grows. Chunks of 32 MiB and best fit within them are what others
// have measured on desktop cards.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/ledger.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/device_memory.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kAlignment = 512;

// cudaMemPoolAttr
enum PoolAttribute : int {
  kReuseFollowEventDependencies = 1,
  kReuseAllowOpportunistic = 2,
  kReuseAllowInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};

struct Range {
  std::uint64_t size;
  std::uint64_t chunk;  // address of the chunk that it is cut from
  bool used;
};

class Pool {
 public:
  int device = 0;

  int allocate(std::uint64_t size, void** address) {
    const std::uint64_t wanted = std::max((size + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
    auto best = best_fit(wanted);
    if (best == ranges_.end()) {
      const std::uint64_t chunk_bytes = (wanted + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
      void* chunk = nullptr;
      int error = xmem::phantom::allocate(device, chunk_bytes, &chunk);
      if (error == kOutOfMemory) {
        trim(0);
        error = xmem::phantom::allocate(device, std::max(whole_pages(wanted), kPageBytes), &chunk);
      }
      if (error != kSuccess) return error;
      std::uint64_t base = 0, length = 0;
      allocation_of(chunk, &base, &length);
      reserved_ += length;
      reserved_high_ = std::max(reserved_high_, reserved_);
      best = ranges_.insert({base, {length, base, false}}).first;
    }
    Range& range = best->second;
    if (range.size > wanted) ranges_[best->first + wanted] = {range.size - wanted, range.chunk, false};
    range.size = wanted;
    range.used = true;
    used_ += wanted;
    used_high_ = std::max(used_high_, used_);
    *address = reinterpret_cast<void*>(best->first);
    return kSuccess;
  }

  bool release(void* address) {
    auto freed = ranges_.find(reinterpret_cast<std::uint64_t>(address));
    if (freed == ranges_.end() || !freed->second.used) return false;
    freed->second.used = false;
    used_ -= freed->second.size;
    freed = join(freed);
    if (freed != ranges_.begin()) join(std::prev(freed));
    return true;
  }

  // Gives whole free chunks back until at most `keep` bytes are reserved.
  void trim(std::uint64_t keep) {
    for (auto range = ranges_.begin(); range != ranges_.end() && reserved_ > keep;) {
      std::uint64_t base = 0, length = 0;
      const auto here = range++;
      allocation_of(reinterpret_cast<void*>(here->first), &base, &length);
      if (here->second.used || base != here->first || length != here->second.size) continue;
      xmem::phantom::release(reinterpret_cast<void*>(here->first));
      reserved_ -= length;
      ranges_.erase(here);
    }
  }

  void synchronize() { trim(threshold_); }

  std::uint64_t get(int attribute) const {
    switch (attribute) {
      case kReleaseThreshold:
        return threshold_;
      case kReservedCurrent:
        return reserved_;
      case kReservedHigh:
        return reserved_high_;
      case kUsedCurrent:
        return used_;
      case kUsedHigh:
        return used_high_;
      default:
        return 1;
    }
  }

  void set(int attribute, std::uint64_t value) {
    if (attribute == kReleaseThreshold) threshold_ = value;
    if (attribute == kReservedHigh) reserved_high_ = reserved_;
    if (attribute == kUsedHigh) used_high_ = used_;
  }

 private:
  using Ranges = std::map<std::uint64_t, Range>;

  Ranges::iterator best_fit(std::uint64_t wanted) {
    auto best = ranges_.end();
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      if (range->second.used || range->second.size < wanted) continue;
      if (best == ranges_.end() || range->second.size < best->second.size) best = range;
    }
    return best;
  }

  // Joins a free range with the free one after it in the same chunk.
  Ranges::iterator join(Ranges::iterator range) {
    const auto next = std::next(range);
    if (next != ranges_.end() && !range->second.used && !next->second.used &&
        next->second.chunk == range->second.chunk && range->first + range->second.size == next->first) {
      range->second.size += next->second.size;
      ranges_.erase(next);
    }
    return range;
  }

  Ranges ranges_;
  std::uint64_t threshold_ = 0, reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
};

struct Pools {
  std::mutex mutex;
  Pool defaults[kMostDevices];
  Pools() {
    for (unsigned device = 0; device < kMostDevices; ++device) defaults[device].device = static_cast<int>(device);
  }
};

Pools& pools() {
  static auto* kept = new Pools();
  return *kept;
}

int allocate_from(Pool& pool, std::size_t size, void** address) {
  const std::lock_guard lock(pools().mutex);
  *address = nullptr;
  if (size == 0) return kSuccess;
  return fail(pool.allocate(size, address));
}

int synchronize_pools() {
  const std::lock_guard lock(pools().mutex);
  for (Pool& pool : pools().defaults) pool.synchronize();
  return kSuccess;
}

Pool& pool_here() {
  return pools().defaults[static_cast<unsigned>(current_device()) % kMostDevices];
}

}  // namespace

PHANTOM_EXPORT int cudaMallocAsync(void** address, std::size_t size, void*) {
  note(Function::cudaMallocAsync);
  if (!machine().has(current_device())) return fail(kNoDevice);
  return allocate_from(pool_here(), size, address);
}

PHANTOM_EXPORT int cudaMallocFromPoolAsync(void** address, std::size_t size, void* pool, void*) {
  note(Function::cudaMallocFromPoolAsync);
  return allocate_from(*static_cast<Pool*>(pool), size, address);
}

PHANTOM_EXPORT int cudaFreeAsync(void* address, void*) {
  note(Function::cudaFreeAsync);
  if (address == nullptr) return kSuccess;
  const int device = device_of(address);
  if (device < 0) return fail(kInvalidValue);
  {
    const std::lock_guard lock(pools().mutex);
    if (pools().defaults[device].release(address)) return kSuccess;
  }
  return fail(release(address));
}

PHANTOM_EXPORT int cudaDeviceGetDefaultMemPool(void** pool, int device) {
  note(Function::cudaDeviceGetDefaultMemPool);
  if (!machine().has(device)) return fail(kInvalidDevice);
  *pool = &pools().defaults[device];
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetMemPool(void** pool, int device) {
  note(Function::cudaDeviceGetMemPool);
  if (!machine().has(device)) return fail(kInvalidDevice);
  *pool = &pools().defaults[device];
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  note(Function::cudaMemPoolGetAttribute);
  const std::lock_guard lock(pools().mutex);
  const std::uint64_t found = static_cast<Pool*>(pool)->get(attribute);
  if (attribute <= kReuseAllowInternalDependencies)
    *static_cast<int*>(value) = static_cast<int>(found);
  else
    *static_cast<std::uint64_t*>(value) = found;
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemPoolSetAttribute(void* pool, int attribute, void* value) {
  note(Function::cudaMemPoolSetAttribute);
  const std::lock_guard lock(pools().mutex);
  if (attribute > kReuseAllowInternalDependencies) {
    static_cast<Pool*>(pool)->set(attribute, *static_cast<std::uint64_t*>(value));
  }
  return kSuccess;
}

PHANTOM_EXPORT int cudaMemPoolTrimTo(void* pool, std::size_t keep) {
  note(Function::cudaMemPoolTrimTo);
  const std::lock_guard lock(pools().mutex);
  static_cast<Pool*>(pool)->trim(keep);
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceSynchronize() {
  note(Function::cudaDeviceSynchronize);
  if (const int error = refuse_in_any_capture(); error != kSuccess) return fail(error);
  wait_for_device();
  return synchronize_pools();
}

PHANTOM_EXPORT int cudaStreamSynchronize(void* stream) {
  note(Function::cudaStreamSynchronize);
  if (const int error = refuse_in_capture(stream); error != kSuccess) return fail(error);
  wait_for_stream(stream);
  return synchronize_pools();
}

PHANTOM_EXPORT int cudaEventSynchronize(void* event) {
  note(Function::cudaEventSynchronize);
  if (const int error = refuse_captured_event(event); error != kSuccess) return fail(error);
  wait_for_event(event);
  return synchronize_pools();
}
