// A GPU that is behind the script: what is done when.
#include "runtime/progress.hpp"
#include "testing.hpp"

using namespace xmem::phantom;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Asks once at the beginning of time, which never is a wait.
bool done(Progress& progress, const Mark& mark) {
  return progress.is_done(mark, 0);
}

}  // namespace

TEST(waiting_for_a_mark_finishes_what_came_before_it) {
  Progress progress(100);
  const Line line = progress.add_line();
  const Mark early = progress.mark(line);
  progress.issue(line);
  const Mark late = progress.mark(line);
  CHECK(!done(progress, early));
  progress.finish(early);
  CHECK(done(progress, early));
  CHECK(!done(progress, late));
  progress.finish(line);
  CHECK(done(progress, late));
}

TEST(an_event_never_recorded_is_done) {
  Progress progress(100);
  progress.add_line();
  CHECK(done(progress, Mark{}));
}

TEST(a_stream_is_done_when_what_it_waited_for_is) {
  Progress progress(100);
  const Line copies = progress.add_line(), compute = progress.add_line(), other = progress.add_line();
  const Mark copied = progress.mark(copies);
  const Mark elsewhere = progress.mark(other);
  progress.wait(compute, copied);
  const Mark computed = progress.mark(compute);
  const Mark copied_later = progress.mark(copies);
  progress.finish(computed);
  CHECK(done(progress, copied));
  CHECK(!done(progress, copied_later));
  CHECK(!done(progress, elsewhere));
}

TEST(an_event_knows_only_what_its_stream_waited_for_before) {
  Progress progress(100);
  const Line copies = progress.add_line(), compute = progress.add_line();
  const Mark before = progress.mark(compute);
  const Mark copied = progress.mark(copies);
  progress.wait(compute, copied);
  progress.finish(before);
  CHECK(!done(progress, copied));
}

TEST(a_full_stream_finishes_its_oldest_work) {
  Progress progress(10);
  const Line copies = progress.add_line(), compute = progress.add_line();
  const Mark copied = progress.mark(copies);
  progress.wait(compute, copied);
  const Mark first = progress.mark(compute);
  for (int i = 0; i < 9; ++i) progress.issue(compute);
  CHECK(!done(progress, first));
  CHECK(!done(progress, copied));
  progress.issue(compute);
  CHECK(done(progress, first));
  CHECK(done(progress, copied));
}

TEST(streams_that_wait_for_each_other_in_turn) {
  Progress progress(1000000);
  const Line left = progress.add_line(), right = progress.add_line();
  const Mark first = progress.mark(left);
  Mark last = first;
  for (int i = 0; i < 100000; ++i) {
    const Line line = i % 2 == 0 ? right : left;
    progress.wait(line, last);
    last = progress.mark(line);
  }
  CHECK(!done(progress, first));
  progress.finish(last);
  CHECK(done(progress, first));
}

TEST(a_host_that_only_asks_lets_the_gpu_catch_up) {
  Progress progress(100);
  const Line line = progress.add_line();
  const Mark mark = progress.mark(line);
  int asked = 0;
  while (!done(progress, mark) && asked < 10000) ++asked;
  CHECK(asked > 100);
  CHECK(asked < 10000);
}

TEST(a_host_that_asks_now_and_then_lets_it_catch_up_too) {
  Progress progress(100);
  const Line line = progress.add_line();
  const Mark mark = progress.mark(line);
  CHECK(!progress.is_done(mark, 0));
  progress.issue(line);
  CHECK(!progress.is_done(mark, 5 * kSecond));
  CHECK(!progress.is_done(mark, 5 * kSecond + kSecond / 2));
  CHECK(progress.is_done(mark, 6 * kSecond));
}
