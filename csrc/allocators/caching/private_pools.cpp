#include "allocators/caching/private_pools.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace xmem::allocators {
namespace {

[[noreturn]] void refuse(MempoolId pool, const char* problem, const char* hint = "") {
  throw ConfigError("private pool " + std::to_string(pool) + " " + problem, hint);
}

}  // namespace

void PrivatePools::retain(MempoolId pool) {
  if (pool <= kDefaultMempool) refuse(pool, "does not exist", "use the number of a private pool, from 1");
  if (is_freeable(pool))
    refuse(pool, "cannot be used again, because it waits to be given back", "use a pool that is in use");
  ++users_[pool];
}

void PrivatePools::begin(MempoolId pool, bool capture) {
  if (std::ranges::find(scopes_, pool, &Scope::pool) != scopes_.end()) {
    refuse(pool, "cannot have a second scope", "open one scope of a pool at a time");
  }
  retain(pool);
  scopes_.push_back({pool, capture || every_scope_captures_});
  scopes_changed();
}

void PrivatePools::end(MempoolId pool) {
  const auto ended = std::erase_if(scopes_, [&](const Scope& scope) { return scope.pool == pool; });
  if (ended == 0) refuse(pool, "has no open scope to end");
  scopes_changed();
}

void PrivatePools::release(MempoolId pool) {
  const auto found = users_.find(pool);
  if (found == users_.end() || found->second == 0) refuse(pool, "cannot be released, because it is not in use");
  if (--found->second == 0) freeable_.push_back(pool);
}

bool PrivatePools::is_freeable(MempoolId pool) const {
  return std::ranges::find(freeable_, pool) != freeable_.end();
}

void PrivatePools::forget(MempoolId pool) {
  std::erase(freeable_, pool);
  users_.erase(pool);
}

void PrivatePools::ensure(MempoolId pool) {
  if (pool == kDefaultMempool) return;
  std::erase(freeable_, pool);
  int& users = users_[pool];
  users = std::max(users, 1);
}

void PrivatePools::abandon(MempoolId pool) {
  if (is_freeable(pool)) return;
  users_[pool] = 0;
  freeable_.push_back(pool);
}

void PrivatePools::scopes_changed() {
  current_ = scopes_.empty() ? kDefaultMempool : (newest_first_ ? scopes_.back() : scopes_.front()).pool;
  captures_ = static_cast<std::size_t>(std::ranges::count_if(scopes_, &Scope::captures));
}

}  // namespace xmem::allocators
