// Windows of events -> a trace, on several threads. The only file of the reader that knows threads.
//
// The thread that reads and cuts the text hands whole windows to workers as long as they keep up, and decodes a window
// itself when they do not: with one worker on two processors both are busy, and memory is bounded by two windows for
// each worker. Every thread fills a fragment of its own; windows are numbered, so the trace does not depend on who
// decoded what.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trace/parsing/event_decoder.hpp"
#include "trace/trace_fragment.hpp"

namespace xmem::trace {

// Thrown where a worker found that the event array ends inside its window, which damage had hidden when the text was
// cut: what was cut after it is not what it seemed. Read the text again on one thread.
struct NeedsOneThread {};

class WindowDecoders {
 public:
  WindowDecoders(std::size_t threads, OperatorNames with_inputs);
  ~WindowDecoders();
  WindowDecoders(const WindowDecoders&) = delete;
  WindowDecoders& operator=(const WindowDecoders&) = delete;

  // Decodes in the calling thread; returns how much was taken, as EventDecoder::decode_window does.
  std::size_t decode(char* begin, std::size_t length, std::int64_t offset);

  // An empty buffer when a worker can take a window, to be swapped for the one that holds it.
  std::optional<std::vector<char>> exchange_buffer();
  void hand_over(std::vector<char> buffer, std::size_t begin, std::size_t length, std::int64_t offset);

  // Waits for the workers. Rethrows what one of them threw.
  std::int64_t event_count();

  // Waits for the workers; no more windows after this.
  Trace finish();

 private:
  struct Task {
    std::vector<char> buffer;
    std::size_t begin, length;
    std::int64_t offset, number;
  };

  struct Lane {
    explicit Lane(const OperatorNames& with_inputs) : decoder(fragment, with_inputs) {}

    TraceFragment fragment;
    EventDecoder decoder;
  };

  void start_workers();
  void work(Lane& lane);
  void wait();

  OperatorNames with_inputs_;
  std::size_t workers_;
  std::int64_t windows_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one a thread; the first is the calling thread's

  std::mutex mutex_;
  std::condition_variable work_left_, work_done_;
  std::deque<Task> tasks_;
  std::vector<std::vector<char>> spare_buffers_;
  std::size_t busy_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;  // not std::jthread, which older C++ libraries of macOS lack
};

}  // namespace xmem::trace
