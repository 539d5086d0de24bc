#include "simulation/pool_checkpoints.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "simulation/requests.hpp"

namespace xmem::simulation {

using allocators::BlockHandle;
using allocators::SegmentCheckpoint;

void PoolCheckpoints::keep(allocators::MempoolId pool, const std::vector<std::int32_t>& handles,
                           const allocators::CachingAllocator& allocator) {
  Checkpoint checkpoint{allocator.checkpoint_pool(pool), {}};
  std::unordered_map<std::int32_t, Place> place_of_handle;
  for (std::size_t s = 0; s < checkpoint.segments.size(); ++s) {
    const auto& pieces = checkpoint.segments[s].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (!pieces[p].block.is_none()) place_of_handle.emplace(pieces[p].block.value, Place{s, p});
    }
  }
  for (std::size_t b = 0; b < handles.size() && !place_of_handle.empty(); ++b) {
    const auto found = handles[b] < 0 ? place_of_handle.end() : place_of_handle.find(handles[b]);
    if (found != place_of_handle.end()) checkpoint.place_of.emplace(b, found->second);
  }
  kept_.push_back(std::move(checkpoint));
}

void PoolCheckpoints::restore(std::int32_t number, bool all, std::span<const std::size_t> awaited,
                              std::span<const std::int32_t> restores, std::span<const Bytes> size_bytes,
                              std::vector<std::int32_t>& handles, allocators::CachingAllocator& allocator) {
  if (number < 0 || static_cast<std::size_t>(number) >= kept_.size()) {
    throw ConfigError("checkpoint " + std::to_string(number) + " was not taken",
                      "use the number of one that was taken before, below " + std::to_string(kept_.size()));
  }
  const Checkpoint& checkpoint = kept_[static_cast<std::size_t>(number)];
  restored_.resize(checkpoint.segments.size(), false);
  std::vector<std::vector<BlockHandle>> taken(checkpoint.segments.size());  // what is not claimed yet, none where it is
  const auto put_back = [&](std::size_t s) {
    if (restored_[s]) return;
    restored_[s] = true;
    taken[s] = allocator.restore_segment(checkpoint.segments[s]);
  };
  const auto claim = [&](std::size_t block, std::size_t s, std::size_t p) {
    handles[block] = taken[s][p].value;
    taken[s][p] = {};
  };

  for (const std::size_t block : awaited) {
    if (restores[block] < 0) continue;
    const auto place = checkpoint.place_of.find(static_cast<std::size_t>(restores[block]));
    if (place == checkpoint.place_of.end()) continue;
    const auto [s, p] = place->second;
    put_back(s);
    if (p < taken[s].size() && !taken[s][p].is_none()) claim(block, s, p);
  }
  for (const std::size_t block : awaited) {
    if (restores[block] != kFreeAtCheckpoint) continue;
    const auto claim_free_piece = [&] {
      for (std::size_t s = 0; s < taken.size(); ++s) {
        const auto& pieces = checkpoint.segments[s].pieces;
        for (std::size_t p = 0; p < taken[s].size(); ++p) {
          if (taken[s][p].is_none() || !pieces[p].block.is_none()) continue;
          claim(block, s, p);
          return true;
        }
      }
      return false;
    };
    if (claim_free_piece()) continue;
    const std::size_t s = free_segment(checkpoint, restored_, size_bytes[block]);
    if (s == checkpoint.segments.size()) continue;
    put_back(s);
    claim_free_piece();
  }
  for (std::size_t s = 0; all && s < checkpoint.segments.size(); ++s) put_back(s);
  if (all) restored_.clear();
  for (const std::vector<BlockHandle>& segment : taken) {
    for (const BlockHandle nobodys : segment) {
      if (!nobodys.is_none()) allocator.free(nobodys);
    }
  }
}

// One that was free as a whole, of this size if there is such a one; the count of segments where there is none.
std::size_t PoolCheckpoints::free_segment(const Checkpoint& checkpoint, const std::vector<bool>& restored, Bytes size) {
  std::size_t found = checkpoint.segments.size();
  for (std::size_t s = checkpoint.segments.size(); s-- > 0;) {
    const SegmentCheckpoint& segment = checkpoint.segments[s];
    const bool is_free = segment.pieces.size() == 1 && segment.pieces.front().block.is_none();
    if (restored[s] || !is_free) continue;
    if (segment.pieces.front().size == size) return s;
    found = s;
  }
  return found;
}

}  // namespace xmem::simulation
