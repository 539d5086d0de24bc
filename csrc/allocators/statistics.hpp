// The counters behind torch.cuda.memory_stats(), with PyTorch's names and meaning.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "allocators/ids.hpp"

namespace xmem::allocators {

// One gauge. What PyTorch calls `freed`, the sum of all decreases, is allocated - current.
struct Stat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  // sum of all increases

  std::int64_t freed() const { return allocated - current; }
  void increase(std::int64_t amount) {
    current += amount;
    allocated += amount;
    peak = std::max(peak, current);
  }
  void decrease(std::int64_t amount) { current -= amount; }
  friend bool operator==(const Stat&, const Stat&) = default;
};

// A gauge of everything and of each pool.
struct PooledStat {
  Stat all;
  std::array<Stat, 2> of_pool;

  void increase(Pool pool, std::int64_t amount) {
    all.increase(amount);
    of_pool[static_cast<std::size_t>(pool)].increase(amount);
  }
  void decrease(Pool pool, std::int64_t amount) {
    all.decrease(amount);
    of_pool[static_cast<std::size_t>(pool)].decrease(amount);
  }
  void change(Pool pool, std::int64_t amount) {
    if (amount > 0) increase(pool, amount);
    if (amount < 0) decrease(pool, -amount);
  }
  friend bool operator==(const PooledStat&, const PooledStat&) = default;
};

struct Statistics {
  PooledStat allocation;      // blocks handed out
  PooledStat segment;         // device allocations alive; expandable memory never counts
  PooledStat active;          // blocks handed out or waiting for another stream
  PooledStat inactive_split;  // free blocks that share a segment; expandable memory never counts
  PooledStat allocated_bytes;
  PooledStat reserved_bytes;
  PooledStat active_bytes;
  PooledStat inactive_split_bytes;
  PooledStat requested_bytes;
  Stat oversize_allocations;  // blocks of max_split_size or more
  Stat oversize_segments;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0;
  std::int64_t num_device_free = 0;
  std::int64_t num_oom_rejections = 0;

  friend bool operator==(const Statistics&, const Statistics&) = default;
};

}  // namespace xmem::allocators
