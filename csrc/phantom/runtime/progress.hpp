// How far a GPU has come that is behind the script: the work of a stream is done when the script has waited for it, or
// when so much was issued after it that the stream was full. A real GPU is somewhere between this one and one that is
// done with everything as soon as it is issued; what the script holds on to until the GPU is done hangs on it.
//
// A stream is a line. Each line counts what was issued on it, so a place in its work is a number, and what must be done
// before that place is a number for each line: a clock. Lines are numbered from 0 and never used again.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace xmem::phantom {

using Line = std::uint32_t;

// By line, up to which place its work must be done.
using Clock = std::vector<std::uint64_t>;

// What an event marks: a place of a line, and what is done when that is.
struct Mark {
  Line line = 0;
  Clock clock;  // empty: never recorded
};

class Progress {
 public:
  // At most so much work of a line waits; whoever issues more waits for the oldest.
  explicit Progress(std::uint64_t most_waiting) : most_waiting_(most_waiting) {}

  Line add_line();

  void issue(Line line);

  // The place that a line has come to; as an event, it is work itself.
  Mark place(Line line) const { return {line, lines_[line].before}; }
  Mark mark(Line line);

  // What the line does from now on comes after the mark.
  void wait(Line line, const Mark& mark);

  // The host waits for a mark, or for all that a line was given.
  void finish(const Mark& mark) { finish(mark.clock); }
  void finish(Line line) { finish(lines_[line].before); }

  // Whether the work before a mark is done. While nothing is issued the GPU catches up: after many questions, or some
  // time after the first.
  bool is_done(const Mark& mark, std::int64_t now_ns);

 private:
  struct State {
    std::uint64_t done = 0;
    Clock before;  // what must be done before what is issued next; of the line itself, all that was issued
    std::deque<std::pair<std::uint64_t, Clock>> waits;  // from which place on it comes after what
  };

  void finish(const Clock& clock);
  void reach(Line line, std::uint64_t place);

  std::uint64_t most_waiting_;
  std::uint64_t questions_ = 0;  // since something was issued
  std::int64_t asked_ns_ = 0;    // the first of them
  std::vector<State> lines_;
};

}  // namespace xmem::phantom
