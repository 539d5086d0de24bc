// Which spans hold an instant: one sweep over spans and questions, both in order of time.
//
// Operators, frames and annotations of a thread nest, so the spans that are open at a time form a stack. Spans of
// broken or foreign traces may cross; then closed spans are also removed from the middle of the stack. What a question
// asks of its stack is kept for each level, made from that of the level outside it: the cost is linear in spans plus
// questions, and in the depth, which has a limit, only where spans cross.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "trace/event_table.hpp"

namespace xmem::attribution {

// Deeper than Python's own limit of recursion by an order of magnitude: no profiler writes such a trace.
inline constexpr std::size_t kMostNested = 10'000;

// A question: which spans of `thread` are open at `time_ns`; `id` is the asker's.
struct Instant {
  std::int32_t thread;
  Nanoseconds time_ns;
  std::uint32_t id;
};

// Calls answer(id, level) for every instant, in order of thread and time. A level is what is known of the open spans:
// enter(level of the spans outside, row) gives that of a span inside them, and Level{} stands for no span.
template <class Level, class Enter, class Answer>
void sweep_stacks(const trace::EventTable& events, std::vector<Instant>& instants, Enter enter, Answer answer) {
  std::sort(instants.begin(), instants.end(), [](const Instant& a, const Instant& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.id < b.id;
  });
  std::vector<std::uint32_t> open;
  std::vector<Level> levels{Level{}};  // before the first open span, and after each
  bool crossing = false;
  std::size_t row = 0;
  std::int32_t thread = -1;
  const auto close_until = [&](Nanoseconds time) {
    while (!open.empty() && events.end_ns[open.back()] <= time) open.pop_back();
    levels.resize(open.size() + 1);
    if (!crossing) return;
    if (std::erase_if(open, [&](std::uint32_t span) { return events.end_ns[span] <= time; }) == 0) return;
    levels.resize(1);
    for (const std::uint32_t span : open) levels.push_back(enter(levels.back(), span));
  };
  for (const Instant& instant : instants) {
    if (instant.thread != thread) {
      thread = instant.thread;
      open.clear();
      levels.resize(1);
      crossing = false;
      while (row < events.size() && events.thread[row] < thread) ++row;
    }
    for (; row < events.size() && events.thread[row] == thread && events.begin_ns[row] <= instant.time_ns; ++row) {
      close_until(events.begin_ns[row]);
      crossing = crossing || (!open.empty() && events.end_ns[row] > events.end_ns[open.back()]);
      open.push_back(static_cast<std::uint32_t>(row));
      if (open.size() > kMostNested)
        throw TraceError("events of one thread are nested more than " + std::to_string(kMostNested) +
                         " levels deep, which no profiler writes; record the trace again");
      levels.push_back(enter(levels.back(), open.back()));
    }
    close_until(instant.time_ns);
    answer(instant.id, static_cast<const Level&>(levels.back()));
  }
}

}  // namespace xmem::attribution
