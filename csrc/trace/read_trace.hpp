// Bytes in any pieces -> a Trace. One pass; memory is bounded by the window and the columns, not by the file.
//
// The reader walks the top level of the document by itself (a bare array of events, or an object one of whose keys is
// `traceEvents`), hands the event array to the splitter and the decoder window by window, keeps the value of the key
// `xmem`, and skips the rest. Throws TraceError when the bytes cannot be a trace or end too early; smaller faults are
// counted in Trace::diagnostics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/parsing/event_splitter.hpp"
#include "trace/parsing/window_decoders.hpp"
#include "trace/trace.hpp"

namespace xmem::trace {

class TraceReader {
 public:
  // Of `threads`, the calling one reads and cuts; all decode. The trace is the same for any number, but with more than
  // one every function may throw NeedsOneThread.
  // Of operators named in `with_inputs` shapes and values are kept.
  explicit TraceReader(std::size_t threads = 1, OperatorNames with_inputs = {});

  // Room for the next bytes of the file; what was written there is taken by `commit`.
  std::span<char> prepare(std::size_t bytes);
  void commit(std::size_t bytes);

  void feed(std::string_view bytes);

  // After the last byte. The reader is spent.
  Trace finish();

  std::int64_t bytes_read() const { return origin_ + static_cast<std::int64_t>(end_ - kFront); }

 private:
  enum class State : std::uint8_t { start, key, events, done };

  static constexpr std::size_t kFront = 1;  // the decoder wants one byte before a window

  void process();
  bool read_start();
  bool read_key();
  void enter_events();
  bool read_events();
  bool pass_damage();
  bool decode_events(std::size_t end);
  void split_anew();
  void hand_over_events(std::size_t end, std::vector<char> buffer);
  void compact();
  std::size_t pending() const { return end_ - begin_; }
  bool is_due() const { return ended_ || pending() >= patience_; }
  std::int64_t offset_of(std::size_t index) const { return origin_ + static_cast<std::int64_t>(index - kFront); }
  std::size_t skip_spaces(std::size_t index) const;
  std::size_t skip_separators(std::size_t index) const;
  [[noreturn]] void fail_not_a_trace(std::size_t index);

  WindowDecoders decoders_;
  EventSplitter splitter_;
  std::string metadata_, distributed_;
  State state_ = State::start;
  bool bare_list_ = false;
  bool saw_events_ = false;
  std::vector<char> buffer_;
  std::size_t begin_ = kFront;    // first byte not yet taken
  std::size_t scanned_ = kFront;  // end of what the splitter has seen
  std::size_t end_ = kFront;      // end of the bytes of the file
  bool ended_ = false;            // no more bytes will come
  std::size_t patience_ = 0;      // what is pending is looked at again when it has grown to this
  std::int64_t origin_ = 0;       // place in the file of buffer_[kFront]
};

// Called now and then with the bytes read so far; returns false to stop (the file is closed, Interrupted is thrown).
using Progress = std::function<bool(std::int64_t bytes_read)>;

struct Interrupted {};

// Reads an uncompressed file on so many threads.
Trace read_trace_file(const std::string& path, const Progress& progress, std::size_t threads,
                      const OperatorNames& with_inputs);

}  // namespace xmem::trace
