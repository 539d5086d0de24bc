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

TEST(columns_grow_together_and_keep_their_rows) {
  std::vector<std::int64_t> numbers;
  std::vector<char> letters;
  for (std::int64_t row = 0; row < 300'000; ++row) {
    xmem::grow_on_huge_pages(numbers, letters);
    CHECK(numbers.capacity() > numbers.size() && letters.capacity() > letters.size());
    numbers.push_back(row);
    letters.push_back(static_cast<char>(row % 100));
  }
  for (std::size_t row = 0; row < numbers.size(); row += 997) {
    CHECK_EQUAL(numbers[row], static_cast<std::int64_t>(row));
    CHECK_EQUAL(int{letters[row]}, static_cast<int>(row % 100));
  }
}
