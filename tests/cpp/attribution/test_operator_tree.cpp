#include <memory>
#include <numeric>
#include <vector>

#include "attribution/operator_tree.hpp"
#include "testing.hpp"

using xmem::attribution::nearest_wanted;

namespace {

using Rows = std::vector<std::int32_t>;

// The nearest wanted row of each of some, where `wanted` are the rows that are.
Rows nearest(const Rows& parents, const Rows& wanted, const Rows& rows) {
  const auto marks = std::make_unique<bool[]>(parents.size());
  for (const std::int32_t row : wanted) marks[static_cast<std::size_t>(row)] = true;
  return nearest_wanted(parents, {marks.get(), parents.size()}, rows);
}

// Operators that each lie in the one before.
Rows chain(std::int32_t count) {
  Rows parents(static_cast<std::size_t>(count));
  std::iota(parents.begin(), parents.end(), -1);
  return parents;
}

}  // namespace

TEST(a_row_is_its_own_nearest_or_lies_in_it) {
  const Rows parents{-1, 0, 1, 0, -1};
  CHECK(nearest(parents, {0, 2}, {0, 1, 2, 3, 4, -1}) == (Rows{0, 0, 2, 0, -1, -1}));
}

TEST(nothing_wanted_is_found_nowhere) {
  CHECK(nearest({-1, 0, 1}, {}, {2, -1, 0}) == (Rows{-1, -1, -1}));
  CHECK(nearest({}, {}, {}).empty());
}

TEST(many_deep_rows_are_answered_in_one_pass_with_the_same_answers) {
  const std::int32_t count = 300'000;
  Rows rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  const Rows found = nearest(chain(count), {7, 1000}, rows);  // climbing from each would be 45 thousand million steps
  CHECK_EQUAL(found[6], -1);
  CHECK_EQUAL(found[7], 7);
  CHECK_EQUAL(found[999], 7);
  CHECK_EQUAL(found.back(), 1000);
}

TEST(rows_of_a_kind_are_grouped_by_name_in_their_order) {
  xmem::trace::EventTable events;
  const auto add = [&](xmem::trace::SpanKind kind, std::int32_t name) {
    events.append({.kind = kind, .name = xmem::NameId{name}, .thread = 0, .span = {0, 1}});
  };
  add(xmem::trace::SpanKind::operation, 2);
  add(xmem::trace::SpanKind::annotation, 2);
  add(xmem::trace::SpanKind::operation, 0);
  add(xmem::trace::SpanKind::operation, 2);
  const auto found = xmem::attribution::rows_by_name(events, xmem::trace::SpanKind::operation, 4);
  CHECK(found.rows == (Rows{2, 0, 3}));
  CHECK(found.counts == (Rows{1, 0, 2, 0}));
  CHECK(xmem::attribution::rows_by_name(events, xmem::trace::SpanKind::line, 4).rows.empty());
}
