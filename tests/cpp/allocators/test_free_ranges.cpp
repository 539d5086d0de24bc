#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "allocators/free_ranges.hpp"
#include "testing.hpp"

using namespace xmem::allocators;
using namespace xmem::literals;
using xmem::Bytes;

namespace {
// The same, by looking at every page.
class Pages {
 public:
  void set(Bytes begin, Bytes length, bool is_free) { std::fill_n(free_.begin() + begin, length, is_free); }

  std::vector<std::pair<Bytes, Bytes>> ranges() const {
    std::vector<std::pair<Bytes, Bytes>> found;
    for (Bytes at = 0; at < static_cast<Bytes>(free_.size()); ++at) {
      if (!free_[static_cast<std::size_t>(at)]) continue;
      if (!found.empty() && found.back().second == at) {
        ++found.back().second;
      } else {
        found.emplace_back(at, at + 1);
      }
    }
    return found;
  }

 private:
  std::vector<bool> free_ = std::vector<bool>(4000, false);
};
}  // namespace

TEST(the_lowest_and_the_highest_range_are_those_of_a_search_through_all) {
  std::mt19937 random(7);
  const auto below = [&](Bytes most) { return static_cast<Bytes>(random() % static_cast<unsigned>(most)); };
  FreeRanges ranges(1);
  Pages pages;
  std::vector<std::pair<Bytes, Bytes>> taken{{0, 4000}};  // where to free from
  for (int step = 0; step < 20'000; ++step) {
    const auto known = pages.ranges();
    if (below(2) == 0 && !taken.empty()) {
      const auto place = taken.begin() + below(static_cast<Bytes>(taken.size()));
      const auto [begin, end] = *place;
      const Bytes length = std::min<Bytes>(end - begin, 1 + below(step % 3 == 0 ? 400 : 20));
      *place = {begin + length, end};
      if (begin + length == end) taken.erase(place);
      ranges.add(begin, begin + length);
      pages.set(begin, length, true);
    } else {
      const Bytes length = 1 + below(step % 5 == 0 ? 200 : 24);
      const bool lowest = below(2) == 0;
      const auto fits = [&](const auto& range) { return range.second - range.first >= length; };
      std::optional<Bytes> expected;
      if (lowest) {
        const auto found = std::ranges::find_if(known, fits);
        if (found != known.end()) expected = found->first;
      } else {
        const auto found = std::find_if(known.rbegin(), known.rend(), fits);
        if (found != known.rend()) expected = found->first;
      }
      const auto got = lowest ? ranges.take_lowest(length) : ranges.take_highest(length);
      CHECK(got == expected);
      if (got) {
        pages.set(*got, length, false);
        taken.emplace_back(*got, *got + length);
      }
    }
  }
}

TEST(a_range_is_removed_by_either_end) {
  FreeRanges ranges(2_MiB);
  ranges.add(10_MiB, 20_MiB);
  ranges.add(20_MiB, 30_MiB);
  CHECK(!ranges.remove_from(20_MiB));
  CHECK(!ranges.remove_until(20_MiB));
  CHECK(ranges.remove_from(10_MiB) == 30_MiB);
  ranges.add(10_MiB, 20_MiB);
  CHECK(ranges.remove_until(20_MiB) == 10_MiB);
  CHECK(!ranges.take_lowest(2_MiB));
}
