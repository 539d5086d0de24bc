#include "attribution/category.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace xmem::attribution {
namespace {

constexpr std::int8_t kCpu = 0;

// When several tensors name one block, the first of these wins.
constexpr std::array kPrecedence{Category::parameter, Category::buffer, Category::optimizer_state, Category::gradient,
                                 Category::input};

std::ptrdiff_t precedence(Category category) {
  return std::ranges::find(kPrecedence, category) - kPrecedence.begin();
}

// Blocks of the kind of device that names are for, by address: those that the trace saw begin, and
// those that it did not.
struct BlocksByAddress {
  BlocksByAddress(const blocks::BlockTable& blocks, bool on_gpu) {
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      if ((blocks.device_type[block] != kCpu) != on_gpu || blocks.address[block] < 0) continue;
      const bool seen = (blocks.flags[block] & blocks::kBornBefore) == 0;
      (seen ? allocated : born_before).push_back(static_cast<std::uint32_t>(block));
    }
    std::ranges::stable_sort(
        allocated, {}, [&](std::uint32_t block) { return std::tuple(blocks.address[block], blocks.alloc_ns[block]); });
    std::ranges::stable_sort(born_before, {}, [&](std::uint32_t block) { return blocks.address[block]; });
  }
  std::vector<std::uint32_t> allocated, born_before;
};

void name_blocks(const blocks::BlockTable& blocks, const NamedTensors& tensors, Attribution& attribution) {
  const BlocksByAddress by_address(blocks, tensors.on_gpu);
  for (std::size_t tensor = 0; tensor < tensors.address.size(); ++tensor) {
    const std::int64_t address = tensors.address[tensor];
    const Nanoseconds time = tensors.time_ns[tensor];
    const auto name = [&](std::uint32_t block) {
      if (blocks.address[block] != address || blocks.free_ns[block] <= time) return;
      std::int32_t& named = attribution.tensor[block];
      if (named >= 0 &&
          precedence(tensors.category[static_cast<std::size_t>(named)]) <= precedence(tensors.category[tensor])) {
        return;
      }
      named = static_cast<std::int32_t>(tensor);
      attribution.category[block] = tensors.category[tensor];
    };
    // Blocks at one address follow each other: only the last to begin can be live.
    const auto after = std::ranges::upper_bound(
        by_address.allocated, std::tuple(address, time), {},
        [&](std::uint32_t block) { return std::tuple(blocks.address[block], blocks.alloc_ns[block]); });
    if (after != by_address.allocated.begin()) name(*(after - 1));
    const auto unseen = std::ranges::equal_range(by_address.born_before, address, {},
                                                 [&](std::uint32_t block) { return blocks.address[block]; });
    for (const std::uint32_t block : unseen) {
      if (blocks.alloc_ns[block] <= time) name(block);
    }
  }
}

Category inferred(const blocks::BlockTable& blocks, const Attribution& a, Nanoseconds step_end, std::size_t block) {
  if ((blocks.flags[block] & blocks::kBornBefore) != 0) return Category::unknown;
  const bool never = blocks.free_ns[block] == kNever;
  const Phase born = a.phase[block];
  const Phase died = a.free_phase[block];
  const bool same_iteration = !never && a.free_iteration[block] == a.iteration[block];
  switch (born) {
    case Phase::other:
    case Phase::load:
      return never || died != born ? Category::input : Category::temporary;
    case Phase::optimizer_step: {
      const bool later = !same_iteration && blocks.free_ns[block] >= step_end;
      return never || later ? Category::optimizer_state : Category::temporary;
    }
    case Phase::backward:
      return same_iteration && died == Phase::backward ? Category::temporary : Category::gradient;
    case Phase::forward:
      return same_iteration && (died == Phase::forward || died == Phase::other) ? Category::temporary
                                                                                : Category::activation;
    case Phase::zero_grad:
      return Category::temporary;
  }
  return Category::unknown;
}

}  // namespace

void categorize(const blocks::BlockTable& blocks, const NamedTensors& tensors, std::span<const Nanoseconds> step_end,
                Attribution& attribution) {
  attribution.category.assign(blocks.size(), Category::unknown);
  attribution.tensor.assign(blocks.size(), -1);
  name_blocks(blocks, tensors, attribution);
  for (std::size_t block = 0; block < blocks.size(); ++block) {
    if (attribution.tensor[block] < 0)
      attribution.category[block] = inferred(blocks, attribution, step_end[block], block);
  }
}

}  // namespace xmem::attribution
