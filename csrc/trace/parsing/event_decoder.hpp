// One JSON object of the event array -> at most one row. The only file that knows the profiler's field names.
//
// Reads windows of whole events with simdjson's On-Demand parser: fields are looked at once, in the order of the file;
// what is not kept is skipped without being parsed. A window that is not valid JSON as a whole is read again event by
// event, so that one bad event costs only itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trace/parsing/frame_name.hpp"
#include "trace/trace_fragment.hpp"

namespace xmem::trace {

// Comma-separated whole events. The byte before and kPadding bytes after must be readable and writable; they are
// restored.
struct Window {
  char* begin;
  std::size_t length;
  std::int64_t offset;  // place of `begin` in the file
  std::int64_t number;  // in the order of the file
};

// Operators whose inputs are kept.
using OperatorNames = std::vector<std::string>;

class EventDecoder {
 public:
  // Rows are appended to `fragment`, which must outlive the decoder, as `with_inputs` must.
  explicit EventDecoder(TraceFragment& fragment, const OperatorNames& with_inputs = kNone);
  ~EventDecoder();
  EventDecoder(const EventDecoder&) = delete;
  EventDecoder& operator=(const EventDecoder&) = delete;

  // Returns how much was taken: all, or up to the ']' of the event array where damage made it look like a part of an
  // event.
  std::size_t decode_window(const Window& window);

  static constexpr std::size_t kPadding = 128;

 private:
  class Parser;
  struct Fields;
  struct Arguments;
  struct Mark;

  Mark mark() const;
  void roll_back(const Mark& mark);
  std::size_t decode_events(char* begin, std::size_t length, std::int64_t offset);
  std::size_t decode_one_by_one(std::string_view window, std::int64_t offset);
  bool decode_or_repair(std::string_view event, std::int64_t offset);
  bool decode_text(std::string_view event, std::int64_t offset, bool repaired);
  void count_other_elements(std::string_view between, std::int64_t offset);
  void count_malformed(std::int64_t offset);
  void keep(const Fields& fields, std::int64_t offset);
  void keep_span(const Fields& fields, SpanKind kind, std::int64_t offset);
  void keep_memory(const Fields& fields, std::int64_t offset);
  void count_skipped(const Fields& fields);
  std::int32_t thread_of(const Fields& fields);
  NameId intern_name(std::string_view token);
  NameId intern_inputs(const Arguments& args);

  static const OperatorNames kNone;

  TraceFragment& fragment_;
  const OperatorNames& with_inputs_;
  std::unique_ptr<Parser> parser_;
  UserFrames user_frames_;
  std::string last_process_token_, last_thread_token_;
  std::int32_t last_thread_index_ = -1;
  std::size_t last_skipped_ = 0;
  std::string scratch_;
};

}  // namespace xmem::trace
