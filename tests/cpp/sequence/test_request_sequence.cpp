#include <algorithm>
#include <random>
#include <string>
#include <tuple>

#include "base/error.hpp"
#include "sequence/request_sequence.hpp"
#include "testing.hpp"

using namespace xmem::sequence;
using xmem::kMaxBlockBytes;
using xmem::kNever;
using Column = std::vector<std::int64_t>;

// "+2 -2 ~" = block 2 allocated, block 2 freed, cache emptied.
static std::string order(const Column& alloc, const Column& free, const Column& size, const Column& emptied = {}) {
  const std::vector<std::uint8_t> kinds(emptied.size(), static_cast<std::uint8_t>(RequestKind::kEmptyCache));
  const std::vector<std::int32_t> numbers(emptied.size(), -1);
  const RequestSequence sequence = make_request_sequence({alloc, free, size, {}}, {emptied, kinds, numbers});
  std::string text;
  for (std::size_t r = 0; r < sequence.count(); ++r) {
    text += std::string(r == 0 ? "" : " ") + "+-~"[static_cast<std::size_t>(sequence.kind[r])];
    if (sequence.block[r] >= 0) text += std::to_string(sequence.block[r]);
  }
  return text;
}

TEST(requests_are_in_order_of_time) {
  CHECK_EQUAL(order({5, 1}, {6, 9}, {8, 8}), "+1 +0 -0 -1");
}

TEST(at_equal_times_frees_come_before_emptied_caches_and_allocations) {
  CHECK_EQUAL(order({3, 0, 3, 0}, {9, 3, 9, 3}, {8, 8, 8, 8}, {3}), "+1 +3 -1 -3 ~ +0 +2 -0 -2");
}

TEST(a_block_freed_at_once_is_freed_in_the_place_of_its_allocation) {
  CHECK_EQUAL(order({0, 4, 4}, {4, 4, kNever}, {8, 8, 8}), "+0 -0 +1 -1 +2");
}

TEST(empty_blocks_make_no_request_and_immortal_ones_no_free) {
  CHECK_EQUAL(order({0, 1}, {5, kNever}, {0, 8}), "+1");
  CHECK_EQUAL(order({}, {}, {}), "");
}

TEST(negative_times_and_the_whole_range_sort) {
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  CHECK_EQUAL(order({7, -3, least}, {kNever - 1, 8, -3}, {8, 8, 8}), "+2 -2 +1 +0 -1 -0");
}

TEST(what_cannot_be_is_refused) {
  CHECK_THROWS(order({5}, {4}, {8}), xmem::ConfigError);
  CHECK_THROWS(order({5}, {6}, {-1}), xmem::ConfigError);
  CHECK_THROWS(order({5, 6}, {6}, {8}), xmem::ConfigError);
  CHECK_THROWS(order({5}, {6}, {kMaxBlockBytes + 1}), xmem::ConfigError);
}

TEST(random_lifetimes_sort_as_the_rule_says) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t horizon = round % 2 == 0 ? 40 : 1'000'000'000'000;
    Column alloc, free, size;
    std::vector<std::tuple<std::int64_t, int, std::int32_t, int>> expected;  // time, frees first, block, alloc first
    for (std::int32_t b = 0; b < 50; ++b) {
      alloc.push_back(static_cast<std::int64_t>(random()) % horizon);
      free.push_back(alloc.back() + static_cast<std::int64_t>(random() % 9) * (horizon / 40));
      size.push_back(64);
      const bool at_once = alloc.back() == free.back();
      expected.emplace_back(alloc.back(), 1, b, 0);
      expected.emplace_back(free.back(), at_once ? 1 : 0, b, 1);
    }
    std::ranges::sort(expected);
    const RequestSequence sequence = make_request_sequence({alloc, free, size, {}});
    CHECK_EQUAL(sequence.count(), expected.size());
    for (std::size_t r = 0; r < expected.size(); ++r) {
      CHECK_EQUAL(sequence.block[r], std::get<2>(expected[r]));
      CHECK_EQUAL(static_cast<int>(sequence.kind[r]), std::get<3>(expected[r]));
      CHECK_EQUAL(sequence.time_ns[r], std::get<0>(expected[r]));
    }
  }
}
