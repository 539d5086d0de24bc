#include <vector>

#include "blocks/lifetimes.hpp"
#include "testing.hpp"

using namespace xmem::blocks;

namespace {

struct Run {
  std::vector<std::int32_t> block;
  std::vector<xmem::Bytes> size_bytes;
  std::vector<xmem::Nanoseconds> alloc_ns, free_ns;

  Run& add(std::int32_t of, xmem::Bytes bytes, xmem::Nanoseconds begin, xmem::Nanoseconds end) {
    block.push_back(of);
    size_bytes.push_back(bytes);
    alloc_ns.push_back(begin);
    free_ns.push_back(end);
    return *this;
  }
  Lifetimes lifetimes() const { return {block, size_bytes, alloc_ns, free_ns}; }
};

Run three() {
  return Run().add(2, 512, 1, 9).add(0, 1024, 2, 5).add(7, 2048, 3, 4);
}

}  // namespace

TEST(the_same_blocks_in_another_order_are_not_changed) {
  const Run other = Run().add(7, 2048, 3, 4).add(2, 512, 1, 9).add(0, 1024, 2, 5);
  CHECK_EQUAL(blocks_changed(three().lifetimes(), other.lifetimes()), 0);
}

TEST(another_size_and_another_lifetime_are_one_change_each) {
  const Run other = Run().add(2, 513, 1, 9).add(0, 1024, 2, 6).add(7, 4096, 2, 8);
  CHECK_EQUAL(blocks_changed(three().lifetimes(), other.lifetimes()), 3);
}

TEST(dropped_and_added_blocks_are_counted) {
  const Run other = Run().add(-1, 64, 0, 9).add(0, 1024, 2, 5).add(-1, 64, 4, 9).add(-1, 64, 4, 9);
  CHECK_EQUAL(blocks_changed(three().lifetimes(), other.lifetimes()), 2 + 3);
  const Run one_more = Run(other).add(-1, 64, 5, 9);
  CHECK_EQUAL(blocks_changed(other.lifetimes(), one_more.lifetimes()), 1);
}

TEST(a_run_of_nothing_has_nothing_to_change) {
  CHECK_EQUAL(blocks_changed(Run().lifetimes(), Run().lifetimes()), 0);
  CHECK_EQUAL(blocks_changed(Run().lifetimes(), three().lifetimes()), 3);
  CHECK_EQUAL(blocks_changed(three().lifetimes(), Run().lifetimes()), 3);
}
