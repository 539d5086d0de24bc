#include "trace/parsing/window_decoders.hpp"

#include <system_error>
#include <utility>

namespace xmem::trace {

WindowDecoders::WindowDecoders(std::size_t threads, OperatorNames with_inputs)
    : with_inputs_(std::move(with_inputs)), workers_(threads > 1 ? threads - 1 : 0) {
  lanes_.push_back(std::make_unique<Lane>(with_inputs_));
}

WindowDecoders::~WindowDecoders() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  work_left_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::size_t WindowDecoders::decode(char* begin, std::size_t length, std::int64_t offset) {
  return lanes_.front()->decoder.decode_window({begin, length, offset, windows_++});
}

std::optional<std::vector<char>> WindowDecoders::exchange_buffer() {
  if (workers_ == 0) return std::nullopt;
  if (threads_.empty()) start_workers();
  const std::lock_guard lock(mutex_);
  if (failure_ || tasks_.size() >= workers_) return std::nullopt;
  if (spare_buffers_.empty()) return std::vector<char>{};
  std::vector<char> buffer = std::move(spare_buffers_.back());
  spare_buffers_.pop_back();
  return buffer;
}

void WindowDecoders::hand_over(std::vector<char> buffer, std::size_t begin, std::size_t length, std::int64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(buffer), begin, length, offset, windows_++});
  }
  work_left_.notify_one();
}

// Where the system gives no more threads, those that there are do the work.
void WindowDecoders::start_workers() {
  try {
    while (threads_.size() < workers_) {
      Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>(with_inputs_));
      threads_.emplace_back([this, &lane] { work(lane); });
    }
  } catch (const std::system_error&) {
    workers_ = threads_.size();
  }
}

void WindowDecoders::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_left_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++busy_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      const std::size_t taken =
          lane.decoder.decode_window({task.buffer.data() + task.begin, task.length, task.offset, task.number});
      if (taken < task.length) throw NeedsOneThread{};
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    spare_buffers_.push_back(std::move(task.buffer));
    --busy_;
    if (busy_ == 0 && tasks_.empty()) work_done_.notify_all();
  }
}

void WindowDecoders::wait() {
  std::unique_lock lock(mutex_);
  work_done_.wait(lock, [this] { return busy_ == 0 && tasks_.empty(); });
  if (failure_) std::rethrow_exception(failure_);
}

std::int64_t WindowDecoders::event_count() {
  wait();
  std::int64_t count = 0;
  for (const auto& lane : lanes_) count += lane->fragment.event_count;
  return count;
}

Trace WindowDecoders::finish() {
  wait();
  std::vector<TraceFragment> fragments;
  for (const auto& lane : lanes_) fragments.push_back(std::move(lane->fragment));
  return assemble_trace(std::move(fragments));
}

}  // namespace xmem::trace
