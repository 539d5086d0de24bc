#include "sequence/request_sequence.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <ranges>
#include <string>

#include "base/error.hpp"

namespace xmem::sequence {
namespace {

void validate(const Lifetimes& lifetimes) {
  const std::size_t count = lifetimes.alloc_ns.size();
  if (lifetimes.free_ns.size() != count || lifetimes.size_bytes.size() != count) {
    throw ConfigError("the columns have " + std::to_string(count) + ", " + std::to_string(lifetimes.free_ns.size()) +
                          " and " + std::to_string(lifetimes.size_bytes.size()) + " rows",
                      "give one allocation time, free time and size for each block");
  }
  if (!lifetimes.waits.empty() && lifetimes.waits.size() != count) {
    throw ConfigError("waits are given for " + std::to_string(lifetimes.waits.size()) + " blocks, but there are " +
                          std::to_string(count),
                      "give waits for all blocks, or for none");
  }
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw ConfigError(std::to_string(count) + " blocks are more than 2^31 - 1", "replay a part of them");
  }
  for (std::size_t b = 0; b < count; ++b) {
    const std::string name = "block " + std::to_string(b);
    if (lifetimes.size_bytes[b] < 0 || lifetimes.size_bytes[b] > kMaxBlockBytes) {
      throw ConfigError(name + " has an invalid size of " + std::to_string(lifetimes.size_bytes[b]) + " bytes",
                        "use a size between 0 and 2^44 bytes");
    }
    if (lifetimes.free_ns[b] < lifetimes.alloc_ns[b]) {
      throw ConfigError(name + " is allocated at " + std::to_string(lifetimes.alloc_ns[b]) +
                            " ns and freed before that, at " + std::to_string(lifetimes.free_ns[b]) + " ns",
                        "free it at or after the allocation; give the largest int64 to a block that is never freed");
    }
  }
}

bool is_about_block(std::uint8_t kind) {
  const auto known = static_cast<RequestKind>(kind);
  return known == RequestKind::kAlloc || known == RequestKind::kFree || known == RequestKind::kRecordStream;
}

void validate(const Calls& calls) {
  if (calls.kind.size() != calls.time_ns.size() || calls.number.size() != calls.time_ns.size()) {
    throw ConfigError("the columns have " + std::to_string(calls.time_ns.size()) + ", " +
                          std::to_string(calls.kind.size()) + " and " + std::to_string(calls.number.size()) + " calls",
                      "give one time, kind and number for each call");
  }
  for (std::size_t c = 0; c < calls.kind.size(); ++c) {
    if (calls.kind[c] > kLastRequestKind || is_about_block(calls.kind[c])) {
      throw ConfigError("call " + std::to_string(c) + " has the invalid kind " + std::to_string(calls.kind[c]),
                        "use the kind of a call that does not concern a block");
    }
  }
}

// Sorts blocks by time, stable, so that equal times stay in order of block. Radix of 11 bits, least significant first.
class TimeOrder {
 public:
  TimeOrder(std::vector<std::int32_t> blocks, std::span<const Nanoseconds> time_ns) : blocks_(std::move(blocks)) {
    const auto time_of = [&](std::int32_t b) { return time_ns[static_cast<std::size_t>(b)]; };
    if (std::ranges::is_sorted(blocks_, {}, time_of)) return;
    const auto [earliest, latest] = std::ranges::minmax(blocks_ | std::views::transform(time_of));
    const auto since_earliest = [&, first = static_cast<std::uint64_t>(earliest)](std::int32_t b) {
      return static_cast<std::uint64_t>(time_of(b)) - first;
    };
    const std::uint64_t span = static_cast<std::uint64_t>(latest) - static_cast<std::uint64_t>(earliest);
    for (int shift = 0; shift < 64 && (span >> shift) > 0; shift += kDigitBits) sort_by_digit(since_earliest, shift);
  }

  std::vector<std::int32_t> take() && { return std::move(blocks_); }

 private:
  static constexpr int kDigitBits = 11;

  template <class Key>
  void sort_by_digit(const Key& key, int shift) {
    const auto digit = [&](std::int32_t b) { return (key(b) >> shift) & ((1U << kDigitBits) - 1); };
    std::array<std::size_t, (1U << kDigitBits) + 1> begin{};
    for (const std::int32_t b : blocks_) ++begin[digit(b) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    scratch_.resize(blocks_.size());
    for (const std::int32_t b : blocks_) scratch_[begin[digit(b)]++] = b;
    blocks_.swap(scratch_);
  }

  std::vector<std::int32_t> blocks_;
  std::vector<std::int32_t> scratch_;
};

}  // namespace

RequestSequence make_request_sequence(const Lifetimes& lifetimes, const Calls& calls) {
  validate(lifetimes);
  validate(calls);
  const auto [alloc_ns, free_ns, size_bytes, waits] = lifetimes;
  std::vector<std::int32_t> allocated;
  std::vector<std::int32_t> freed_later;
  std::size_t freed_at_once = 0;
  for (std::size_t b = 0; b < alloc_ns.size(); ++b) {
    if (size_bytes[b] == 0) continue;
    allocated.push_back(static_cast<std::int32_t>(b));
    if (free_ns[b] == kNever) continue;
    if (free_ns[b] == alloc_ns[b]) {
      ++freed_at_once;
    } else {
      freed_later.push_back(static_cast<std::int32_t>(b));
    }
  }
  allocated = TimeOrder(std::move(allocated), alloc_ns).take();
  freed_later = TimeOrder(std::move(freed_later), free_ns).take();
  std::vector<std::size_t> called(calls.time_ns.size());
  std::iota(called.begin(), called.end(), 0U);
  std::ranges::stable_sort(called, {}, [&](std::size_t c) { return calls.time_ns[c]; });

  RequestSequence sequence;
  const std::size_t waiting = static_cast<std::size_t>(std::ranges::count_if(waits, [](auto w) { return w != 0; }));
  const std::size_t count = allocated.size() + freed_later.size() + freed_at_once + called.size() + waiting;
  sequence.kind.reserve(count);
  sequence.block.reserve(count);
  sequence.time_ns.reserve(count);
  const auto append = [&](RequestKind kind, std::int32_t block, Nanoseconds time) {
    sequence.kind.push_back(kind);
    sequence.block.push_back(block);
    sequence.time_ns.push_back(time);
  };

  const auto append_free = [&](std::int32_t block) {
    const auto b = static_cast<std::size_t>(block);
    if (!waits.empty() && waits[b] != 0) append(RequestKind::kRecordStream, block, free_ns[b]);
    append(RequestKind::kFree, block, free_ns[b]);
  };

  auto next_free = freed_later.begin();
  auto next_call = called.begin();
  const auto append_up_to = [&](Nanoseconds time) {
    while (true) {
      const bool has_free = next_free != freed_later.end() && free_ns[static_cast<std::size_t>(*next_free)] <= time;
      const bool has_call = next_call != called.end() && calls.time_ns[*next_call] <= time;
      if (has_free && (!has_call || free_ns[static_cast<std::size_t>(*next_free)] <= calls.time_ns[*next_call])) {
        append_free(*next_free++);
      } else if (has_call) {
        const std::size_t c = *next_call++;
        append(static_cast<RequestKind>(calls.kind[c]), calls.number[c], calls.time_ns[c]);
      } else {
        return;
      }
    }
  };
  for (const std::int32_t block : allocated) {
    const auto b = static_cast<std::size_t>(block);
    append_up_to(alloc_ns[b]);
    append(RequestKind::kAlloc, block, alloc_ns[b]);
    if (free_ns[b] == alloc_ns[b]) append_free(block);
  }
  append_up_to(kNever);
  return sequence;
}

}  // namespace xmem::sequence
