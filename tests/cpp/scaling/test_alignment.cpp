#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "scaling/alignment.hpp"
#include "testing.hpp"

using xmem::scaling::align;

namespace {

using Keys = std::vector<std::int64_t>;

// By the textbook's table.
std::size_t longest_common_subsequence(const Keys& left, const Keys& right) {
  std::vector<std::vector<std::size_t>> longest(left.size() + 1, std::vector<std::size_t>(right.size() + 1));
  for (std::size_t i = 1; i <= left.size(); ++i) {
    for (std::size_t j = 1; j <= right.size(); ++j) {
      longest[i][j] =
          left[i - 1] == right[j - 1] ? longest[i - 1][j - 1] + 1 : std::max(longest[i - 1][j], longest[i][j - 1]);
    }
  }
  return longest[left.size()][right.size()];
}

}  // namespace

TEST(an_alignment_is_ascending_of_equal_keys_and_as_long_as_can_be) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const auto keys = [&random] {
      Keys made(random() % 25);
      for (std::int64_t& key : made) key = static_cast<std::int64_t>(random() % 4);
      return made;
    };
    const Keys left = keys();
    const Keys right = keys();
    const std::vector<std::int32_t> counterpart = align(left, right);
    CHECK_EQUAL(counterpart.size(), left.size());
    std::size_t aligned = 0;
    std::int32_t last = -1;
    for (std::size_t row = 0; row < left.size(); ++row) {
      if (counterpart[row] < 0) continue;
      CHECK(counterpart[row] > last);
      CHECK_EQUAL(left[row], right.at(static_cast<std::size_t>(counterpart[row])));
      last = counterpart[row];
      ++aligned;
    }
    CHECK_EQUAL(aligned, longest_common_subsequence(left, right));
  }
}

TEST(long_runs_with_few_differences_are_aligned) {
  Keys left(200'000);
  for (std::size_t row = 0; row < left.size(); ++row) left[row] = static_cast<std::int64_t>(row % 100);
  Keys right = left;
  right.insert(right.begin() + 70'000, {-1, -2, -3});
  right.erase(right.begin() + 150'000);
  const std::vector<std::int32_t> counterpart = align(left, right);
  CHECK_EQUAL(std::ranges::count(counterpart, -1), 1);
  CHECK_EQUAL(counterpart[69'999], 69'999);
  CHECK_EQUAL(counterpart[70'000], 70'003);
  CHECK_EQUAL(counterpart.back(), static_cast<std::int32_t>(right.size() - 1));
}

TEST(runs_of_different_scripts_are_refused) {
  const Keys left(30, 1);
  const Keys right(30, 2);
  CHECK_THROWS(align(left, right, 59), xmem::ConfigError);
  CHECK_EQUAL(std::ranges::count(align(left, right, 60), -1), 30);
}
