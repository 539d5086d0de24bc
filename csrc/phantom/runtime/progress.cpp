#include "runtime/progress.hpp"

#include <algorithm>

namespace xmem::phantom {
namespace {

// PyTorch asks for one event of each stream at each allocation, and many allocations may come without a launch.
constexpr std::uint64_t kMostQuestions = 1000;
constexpr std::int64_t kLongestPause = 1'000'000'000;

void merge(Clock& into, const Clock& clock) {
  if (into.size() < clock.size()) into.resize(clock.size());
  for (std::size_t line = 0; line < clock.size(); ++line) into[line] = std::max(into[line], clock[line]);
}

}  // namespace

Line Progress::add_line() {
  const auto line = static_cast<Line>(lines_.size());
  lines_.emplace_back();
  lines_.back().before.resize(line + 1);
  return line;
}

void Progress::issue(Line line) {
  questions_ = 0;
  State& state = lines_[line];
  const std::uint64_t issued = ++state.before[line];
  if (issued > most_waiting_) reach(line, issued - most_waiting_);
}

Mark Progress::mark(Line line) {
  issue(line);
  return place(line);
}

void Progress::wait(Line line, const Mark& mark) {
  if (mark.clock.empty()) return;
  State& state = lines_[line];
  merge(state.before, mark.clock);
  const std::uint64_t place = state.before[line] + 1;
  if (state.waits.empty() || state.waits.back().first != place) state.waits.emplace_back(place, Clock{});
  merge(state.waits.back().second, mark.clock);
}

bool Progress::is_done(const Mark& mark, std::int64_t now_ns) {
  if (mark.clock.empty() || lines_[mark.line].done >= mark.clock[mark.line]) return true;
  if (questions_++ == 0) asked_ns_ = now_ns;
  if (questions_ < kMostQuestions && now_ns - asked_ns_ < kLongestPause) return false;
  finish(mark.clock);
  return true;
}

void Progress::finish(const Clock& clock) {
  for (std::size_t line = 0; line < clock.size(); ++line) reach(static_cast<Line>(line), clock[line]);
}

// What a line has waited for is done, too.
void Progress::reach(Line line, std::uint64_t place) {
  State& state = lines_[line];
  if (place <= state.done) return;
  state.done = place;
  while (!state.waits.empty() && state.waits.front().first <= place) {
    const Clock awaited = std::move(state.waits.front().second);
    state.waits.pop_front();
    finish(awaited);
  }
}

}  // namespace xmem::phantom
