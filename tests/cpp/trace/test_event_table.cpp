#include <algorithm>
#include <random>
#include <vector>

#include "testing.hpp"
#include "trace/event_table.hpp"

using namespace xmem::trace;

namespace {

// Rows as they come, each numbered by its sequence number.
std::vector<SpanRow> rows_in_runs(std::size_t runs, std::size_t length, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto below = [&](std::uint32_t limit) { return static_cast<xmem::Nanoseconds>(engine() % limit); };
  std::vector<SpanRow> rows;
  for (std::size_t run = 0; run < runs; ++run) {
    xmem::Nanoseconds time = below(100);
    for (std::size_t i = 0; i < length; ++i) {
      time += below(3);  // equal begins occur, within a run and between two
      rows.push_back({.thread = static_cast<std::int32_t>(run % 3),
                      .span = {time, time + below(4)},
                      .sequence_number = static_cast<std::int64_t>(rows.size())});
    }
  }
  return rows;
}

bool stands_before(const SpanRow& a, const SpanRow& b) {
  if (a.thread != b.thread) return a.thread < b.thread;
  if (a.span.begin != b.span.begin) return a.span.begin < b.span.begin;
  return a.span.end > b.span.end;
}

// The numbers of the rows in order, by the table and by the standard library.
void check_sorted(std::vector<SpanRow> rows) {
  EventTable table;
  for (const SpanRow& row : rows) table.append(row);
  table.sort(std::vector<std::int64_t>(rows.size(), -1));
  std::ranges::stable_sort(rows, stands_before);
  std::vector<std::int64_t> expected;
  for (const SpanRow& row : rows) expected.push_back(row.sequence_number);
  CHECK(table.sequence_number == expected);
  CHECK(table.begin_ns.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK_EQUAL(table.end_ns[i], rows[i].span.end);
}

}  // namespace

TEST(long_runs_are_merged_in_order_and_equal_rows_keep_theirs) {
  for (const std::uint32_t runs : {1U, 2U, 3U, 4U, 5U, 8U, 13U}) check_sorted(rows_in_runs(runs, 300, 7 + runs));
}

TEST(short_runs_are_sorted_in_order_and_equal_rows_keep_theirs) {
  for (const std::uint32_t length : {1U, 2U, 20U}) check_sorted(rows_in_runs(200, length, 11 + length));
}

TEST(rows_of_the_same_time_stand_by_their_number_in_the_file_where_all_have_one) {
  EventTable table;
  for (const std::int64_t number : {5, 3, 9, 1}) table.append({.thread = 0, .span = {7, 8}, .sequence_number = number});
  table.sort({5, 3, 9, 1});
  CHECK(table.sequence_number == (std::vector<std::int64_t>{1, 3, 5, 9}));
}

TEST(an_empty_table_stays_empty) {
  EventTable table;
  table.sort({});
  CHECK_EQUAL(table.size(), 0U);
}
