#include <map>
#include <random>

#include "allocators/caching/free_blocks.hpp"
#include "testing.hpp"

using namespace xmem::allocators;

TEST(a_lower_bound_is_by_size_and_then_by_rank) {
  FreeBlocks free;
  free.insert({1024, 7}, BlockHandle{0});
  free.insert({512, 9}, BlockHandle{1});
  free.insert({1024, 3}, BlockHandle{2});
  CHECK_EQUAL(free[free.lower_bound({512, 0})].value, 1);
  CHECK_EQUAL(free[free.lower_bound({513, 0})].value, 2);
  CHECK_EQUAL(free[free.lower_bound({1024, 4})].value, 0);
  CHECK(free.lower_bound({1025, 0}) == free.end());
}

TEST(many_keys_stay_in_order_as_in_a_map) {
  std::mt19937_64 random(7);
  FreeBlocks free;
  std::map<std::pair<xmem::Bytes, std::int64_t>, std::int32_t> expected;
  for (std::int32_t step = 0; step < 20'000; ++step) {
    const FreeKey key{512 * static_cast<xmem::Bytes>(random() % 40), static_cast<std::int64_t>(random() % 60)};
    const std::pair<xmem::Bytes, std::int64_t> same{key.size, key.rank};
    const bool grows = random() % 100 < (step < 10'000 ? 70U : 30U);
    if (expected.contains(same) && !grows) {
      free.erase(key);
      expected.erase(same);
    } else if (!expected.contains(same) && grows) {
      free.insert(key, BlockHandle{step});
      expected.emplace(same, step);
    }
    const auto found = free.lower_bound(key);
    const auto wanted = expected.lower_bound(same);
    CHECK_EQUAL(found == free.end(), wanted == expected.end());
    if (wanted != expected.end()) CHECK_EQUAL(free[found].value, wanted->second);
  }
  auto at = free.begin();
  for (const auto& [key, block] : expected) {
    CHECK_EQUAL(free[at].value, block);
    at = free.next(at);
  }
  CHECK(at == free.end());
  for (auto wanted = expected.rbegin(); wanted != expected.rend(); ++wanted) {
    at = free.previous(at);
    CHECK_EQUAL(free[at].value, wanted->second);
  }
}
