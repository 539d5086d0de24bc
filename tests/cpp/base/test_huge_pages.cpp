#include <numeric>
#include <vector>

#include "base/huge_pages.hpp"
#include "testing.hpp"

TEST(a_column_on_huge_pages_is_a_column) {
  for (const std::size_t rows : {std::size_t{0}, std::size_t{5}, std::size_t{1} << 20}) {
    std::vector<std::int64_t> column{7};
    xmem::reserve_on_huge_pages(column, rows);
    CHECK(column.capacity() >= rows);
    CHECK_EQUAL(column.at(0), 7);  // what was there stays
    column.resize(rows);
    std::iota(column.begin(), column.end(), 0);
    CHECK(rows == 0 || column.back() == static_cast<std::int64_t>(rows - 1));
  }
}
