// The settings of PYTORCH_CUDA_ALLOC_CONF that touch placement, and the tie-break that goes with a PyTorch version.
// Parsing the text, and what each version accepts, is Python's (xmem/simulation/alloc_conf.py).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/units.hpp"

namespace xmem::allocators {

// Which of several free blocks of one size is taken: the third key of the free set, after stream and size.
enum class TieBreak : std::uint8_t {
  kAddress = 0,     // lowest address: up to 2.11
  kObjectAge = 1,   // oldest Block object: 2.12
  kSegmentAge = 2,  // oldest segment, then lowest address: from 2.13
};

inline constexpr Bytes kUnlimitedSplit = std::numeric_limits<Bytes>::max();
inline constexpr std::size_t kRoundupEntries = 16;

struct AllocatorOptions {
  TieBreak tie_break = TieBreak::kSegmentAge;
  Bytes large_segment = Bytes{20} << 20;
  Bytes max_split = kUnlimitedSplit;
  Bytes max_non_split_rounding = Bytes{20} << 20;
  // Entry i: divisions between powers of two for sizes in [2^(20+i), 2^(21+i)); 0 and 1 mean plain 512 rounding.
  std::array<std::int32_t, kRoundupEntries> roundup_divisions{};
  double gc_threshold = 0.0;  // 0 = off
  bool expandable = false;
  std::optional<double> memory_fraction = std::nullopt;  // of the device's total; none = no limit of its own
  bool reject_over_capacity = false;                     // throw_on_cudamalloc_oom
  bool newest_scope_first = true;     // of several open private pools the one that serves: from 2.10 the last opened
  bool sizes_with_slack = false;      // sizes are those of blocks: whatever is left of a larger block is split off
  bool every_scope_captures = false;  // up to 2.12 torch.cuda.use_mem_pool holds frees and caches as a capture does
};

// Calls a visitor with each setting: its name in `xmem.simulation.alloc_conf.AllocatorOptions`, and the field.
template <typename Visitor>
void for_each_option(AllocatorOptions& options, Visitor&& visit) {
  visit("tie_break", options.tie_break);
  visit("large_segment_bytes", options.large_segment);
  visit("max_split_bytes", options.max_split);
  visit("max_non_split_rounding_bytes", options.max_non_split_rounding);
  visit("roundup_power2_divisions", options.roundup_divisions);
  visit("garbage_collection_threshold", options.gc_threshold);
  visit("expandable_segments", options.expandable);
  visit("memory_fraction", options.memory_fraction);
  visit("throw_on_cudamalloc_oom", options.reject_over_capacity);
  visit("newest_scope_first", options.newest_scope_first);
  visit("every_scope_captures", options.every_scope_captures);
  visit("sizes_with_slack", options.sizes_with_slack);
}

}  // namespace xmem::allocators
