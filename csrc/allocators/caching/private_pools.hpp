// The private pools of PyTorch's allocator: who uses each, and which of them serves requests.
//
// Mirrors graph_pools, graph_pools_freeable, captures_underway, use_on_oom_pools and no_split_pools of
// c10/cuda/CUDACachingAllocator.cpp. CUDA graphs and torch.cuda.MemPool are users of a pool; while a scope is open
// (a capture is under way, or torch.cuda.use_mem_pool), requests go to its pool. In a capture no cache is flushed and
// nobody looks whether other streams are done. Memory of a pool is given back only when nobody uses it any longer.
// Knows no blocks: caching_allocator.hpp keeps the memory.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "allocators/ids.hpp"
#include "allocators/options.hpp"

namespace xmem::allocators {

class PrivatePools {
 public:
  explicit PrivatePools(const AllocatorOptions& options)
      : newest_first_(options.newest_scope_first), every_scope_captures_(options.every_scope_captures) {}

  // All of these throw ConfigError where PyTorch fails: another user of a pool that waits to be given back, a second
  // scope of one pool, the end of a scope that is not open, one release too many.
  void retain(MempoolId pool);               // createOrIncrefPool: one more user, of a new pool if there is none
  void begin(MempoolId pool, bool capture);  // beginAllocateToPool: one more user, and a scope
  void end(MempoolId pool);                  // endAllocateToPool: the scope ends, the user stays
  void release(MempoolId pool);              // releasePool: one user less
  void use_on_oom(MempoolId pool) { use_on_oom_.insert(pool); }
  void forbid_split(MempoolId pool) { no_split_.insert(pool); }

  // The pool that serves requests; the default pool when no scope is open.
  MempoolId current() const { return current_; }
  bool is_capturing() const { return captures_ > 0; }
  bool all_may_split() const { return no_split_.empty(); }
  bool may_split(MempoolId pool) const { return !no_split_.contains(pool); }
  const std::set<MempoolId>& used_on_oom() const { return use_on_oom_; }

  // Pools without users, in the order in which they lost the last one.
  const std::vector<MempoolId>& freeable() const { return freeable_; }
  bool is_freeable(MempoolId pool) const;
  void forget(MempoolId pool);  // a freeable one, of which nothing is left

  // Sees to it that the pool has a user. For recordings, which do not tell of the calls above.
  void ensure(MempoolId pool);
  void abandon(MempoolId pool);  // that it has none

 private:
  struct Scope {
    MempoolId pool;
    bool captures;
  };
  void scopes_changed();

  std::map<MempoolId, int> users_;
  std::vector<MempoolId> freeable_;
  std::vector<Scope> scopes_;  // open ones, oldest first
  std::size_t captures_ = 0;   // among them
  std::set<MempoolId> use_on_oom_;
  std::set<MempoolId> no_split_;
  MempoolId current_ = kDefaultMempool;
  bool newest_first_;
  bool every_scope_captures_;
};

}  // namespace xmem::allocators
