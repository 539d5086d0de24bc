#include <string>

#include "attribution/stack_sweep.hpp"
#include "testing.hpp"

using xmem::attribution::Instant;
using xmem::attribution::sweep_stacks;
using xmem::trace::EventTable;

namespace {

EventTable spans(std::initializer_list<xmem::Interval> all, std::int32_t thread = 0) {
  EventTable events;
  for (const xmem::Interval& span : all) events.append({.thread = thread, .span = span});
  return events;
}

// The rows that are open at each time, as text.
std::string open_at(const EventTable& events, std::vector<Instant> instants) {
  std::vector<std::string> found(instants.size());
  sweep_stacks<std::string>(
      events, instants, [](const std::string& outside, std::uint32_t row) { return outside + std::to_string(row); },
      [&](std::uint32_t id, const std::string& stack) { found[id] = stack; });
  std::string all;
  for (const std::string& stack : found) all += (all.empty() ? "" : " ") + (stack.empty() ? "-" : stack);
  return all;
}

}  // namespace

TEST(nested_spans_form_a_stack_and_ends_are_exclusive) {
  const EventTable events = spans({{0, 100}, {10, 50}, {20, 30}, {60, 70}});
  CHECK_EQUAL(open_at(events, {{0, 5, 0}, {0, 25, 1}, {0, 30, 2}, {0, 50, 3}, {0, 60, 4}, {0, 100, 5}}),
              "0 012 01 0 03 -");
}

TEST(questions_may_come_in_any_order_and_about_threads_without_spans) {
  const EventTable events = spans({{0, 100}}, 1);
  CHECK_EQUAL(open_at(events, {{1, 50, 0}, {0, 50, 1}, {7, 50, 2}, {1, 0, 3}}), "0 - - 0");
}

TEST(a_span_that_crosses_its_neighbour_leaves_the_middle_of_the_stack) {
  const EventTable events = spans({{0, 40}, {10, 60}, {20, 30}});
  CHECK_EQUAL(open_at(events, {{0, 25, 0}, {0, 35, 1}, {0, 45, 2}, {0, 60, 3}}), "012 01 1 -");
}

TEST(spans_nested_deeper_than_any_profiler_writes_are_refused) {
  const auto deep = [](std::size_t levels) {
    EventTable events;
    for (std::size_t level = 0; level < levels; ++level)
      events.append({.thread = 0, .span = {static_cast<std::int64_t>(level), 1'000'000}});
    std::vector<Instant> instants{{0, 500'000, 0}};
    std::size_t found = 0;
    sweep_stacks<std::size_t>(
        events, instants, [](std::size_t outside, std::uint32_t) { return outside + 1; },
        [&](std::uint32_t, std::size_t level) { found = level; });
    return found;
  };
  CHECK_EQUAL(deep(xmem::attribution::kMostNested), xmem::attribution::kMostNested);
  CHECK_THROWS(deep(xmem::attribution::kMostNested + 1), xmem::TraceError);
}
