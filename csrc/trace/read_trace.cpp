#include "trace/read_trace.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/input_file.hpp"
#include "trace/parsing/event_extent.hpp"
#include "trace/parsing/json_scan.hpp"

namespace xmem::trace {
namespace {

constexpr std::size_t kFilePiece = std::size_t{1} << 20;
constexpr std::size_t kLongestEvent = std::size_t{1} << 28;
constexpr std::size_t kLongEvent = std::size_t{1} << 20;  // from here on, damage may be why it does not end
using Clock = std::chrono::steady_clock;

constexpr auto kProgressEvery = std::chrono::milliseconds(20);
constexpr std::int64_t kProgressBytes = std::int64_t{32} << 20;
constexpr std::int64_t kWorthThreads = std::int64_t{4} << 20;  // shorter files are read before a thread has started

}  // namespace

TraceReader::TraceReader(std::size_t threads, OperatorNames with_inputs)
    : decoders_(threads, std::move(with_inputs)), buffer_(kFront + kFilePiece + EventDecoder::kPadding) {}

std::span<char> TraceReader::prepare(std::size_t bytes) {
  compact();
  if (pending() > kLongestEvent) {
    throw TraceError(
        "one event or top-level value is longer than 256 MiB, so the text is not a profiler trace from here on; "
        "record the trace again",
        offset_of(begin_), decoders_.event_count());
  }
  const std::size_t needed = end_ + bytes + EventDecoder::kPadding;
  if (buffer_.size() < needed) buffer_.resize(std::max(needed, 2 * buffer_.size()));
  return {buffer_.data() + end_, bytes};
}

void TraceReader::commit(std::size_t bytes) {
  end_ += bytes;
  process();
}

void TraceReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kFilePiece);
    const std::span<char> room = prepare(piece.size());
    std::memcpy(room.data(), piece.data(), piece.size());
    commit(piece.size());
    bytes.remove_prefix(piece.size());
  }
}

// Moves what is not yet taken to the front, so that the buffer stays as long as one piece and one event.
void TraceReader::compact() {
  const std::size_t taken = begin_ - kFront;
  if (taken == 0) return;
  std::memmove(buffer_.data() + kFront, buffer_.data() + begin_, end_ - begin_);
  origin_ += static_cast<std::int64_t>(taken);
  begin_ -= taken;
  scanned_ -= std::min(scanned_ - kFront, taken);
  end_ -= taken;
}

void TraceReader::process() {
  for (bool advanced = true; advanced;) {
    switch (state_) {
      case State::start:
        advanced = read_start();
        break;
      case State::key:
        // A long value is scanned from its beginning each time: again only when twice as much has come.
        advanced = is_due() && read_key();
        if (!advanced && is_due()) patience_ = 2 * pending();
        break;
      case State::events:
        advanced = read_events();
        break;
      case State::done:
        begin_ = end_;
        advanced = false;
        break;
    }
  }
}

std::size_t TraceReader::skip_spaces(std::size_t index) const {
  while (index < end_ && std::strchr(" \t\r\n", buffer_[index]) != nullptr && buffer_[index] != '\0') ++index;
  return index;
}

// Past the spaces and the comma between two events.
std::size_t TraceReader::skip_separators(std::size_t index) const {
  index = skip_spaces(index);
  return index < end_ && buffer_[index] == ',' ? skip_spaces(index + 1) : index;
}

bool TraceReader::read_start() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (origin_ == 0 && begin_ == kFront) {
    const std::string_view text(buffer_.data() + begin_, std::min(pending(), kByteOrderMark.size()));
    if (text != kByteOrderMark && kByteOrderMark.starts_with(text) && !ended_) return false;  // the mark may follow
    if (text == kByteOrderMark) begin_ += kByteOrderMark.size();
  }
  begin_ = skip_spaces(begin_);
  if (begin_ == end_) return false;
  const char first = buffer_[begin_];
  if (first != '{' && first != '[') fail_not_a_trace(begin_);
  bare_list_ = first == '[';
  ++begin_;
  if (bare_list_) {
    enter_events();
  } else {
    state_ = State::key;
  }
  return true;
}

// One `"key": value` of the top level, or its end.
bool TraceReader::read_key() {
  const std::string_view text(buffer_.data(), end_);
  std::size_t at = begin_;
  while (at < end_ && (at = skip_spaces(at)) < end_ && text[at] == ',') ++at;
  begin_ = at;
  if (at == end_) return false;
  if (text[at] == '}') {
    begin_ = at + 1;
    state_ = State::done;
    return true;
  }
  if (text[at] != '"') fail_not_a_trace(at);
  const std::size_t key_end = string_end(text, at);
  if (key_end == kIncomplete) return false;
  const std::string_view key = text.substr(at + 1, key_end - at - 2);
  at = skip_spaces(key_end);
  if (at == end_) return false;
  if (text[at] != ':') fail_not_a_trace(at);
  at = skip_spaces(at + 1);
  if (at == end_) return false;
  if (key == "traceEvents" && text[at] == '[') {
    begin_ = at + 1;
    enter_events();
    return true;
  }
  const std::size_t end = value_end(text, at);
  if (end == kIncomplete) return false;
  if (key == "xmem") metadata_.assign(text.substr(at, end - at));
  if (key == "distributedInfo") distributed_.assign(text.substr(at, end - at));
  begin_ = end;
  patience_ = 0;
  return true;
}

void TraceReader::enter_events() {
  saw_events_ = true;
  state_ = State::events;
  patience_ = kLongEvent;
  split_anew();
}

bool TraceReader::read_events() {
  const auto cut = splitter_.scan({buffer_.data() + scanned_, end_ - scanned_});
  if (cut.array_end != EventSplitter::kNone) {
    if (!decode_events(scanned_ + cut.array_end)) return true;
    ++begin_;
    state_ = bare_list_ ? State::done : State::key;
    patience_ = 0;
    return true;
  }
  if (cut.last_event_end != EventSplitter::kNone) {
    patience_ = kLongEvent;
    if (!decode_events(scanned_ + cut.last_event_end)) return true;
  }
  begin_ = skip_separators(begin_);  // spaces without end would fill the buffer
  scanned_ = end_;
  return is_due() && pass_damage();
}

// An event that does not end for long may be damaged: gives the decoder all up to the last one that may still end, and
// lets the splitter begin anew there. False when there is nothing to give.
bool TraceReader::pass_damage() {
  const std::string_view text(buffer_.data(), end_);
  std::size_t at = begin_;
  for (std::size_t next; (next = text.find('{', at)) != std::string_view::npos;) {
    if (EventSplitter().scan(text.substr(at, next - at)).array_end != EventSplitter::kNone) break;
    const EventExtent extent = event_extent(text.substr(next));
    if (extent.end == EventEnd::open) break;
    at = next + extent.length;
  }
  patience_ = std::max(kLongEvent, 2 * (end_ - at));
  if (at == begin_) return false;
  if (decode_events(at)) split_anew();
  return true;
}

void TraceReader::split_anew() {
  splitter_ = EventSplitter{};
  scanned_ = begin_;
}

// Decodes the events that end before `end`, which is the next byte afterwards; a comma left over from the events before
// is not part of them. False where the array ended earlier, which damage had hidden from the splitter: it begins anew
// there.
bool TraceReader::decode_events(std::size_t end) {
  begin_ = skip_separators(begin_);
  if (begin_ < end && bytes_read() > kWorthThreads) {
    if (auto buffer = decoders_.exchange_buffer()) {
      hand_over_events(end, std::move(*buffer));
      return true;
    }
  }
  if (begin_ < end) begin_ += decoders_.decode(buffer_.data() + begin_, end - begin_, offset_of(begin_));
  if (begin_ >= end) {
    begin_ = end;
    return true;
  }
  split_anew();
  return false;
}

// The buffer goes with its events; what follows them moves to another one.
void TraceReader::hand_over_events(std::size_t end, std::vector<char> buffer) {
  const std::size_t rest = end_ - end;
  buffer.resize(std::max(buffer_.size(), kFront + rest + EventDecoder::kPadding));
  std::memcpy(buffer.data() + kFront, buffer_.data() + end, rest);
  buffer.swap(buffer_);
  decoders_.hand_over(std::move(buffer), begin_, end - begin_, offset_of(begin_));
  const std::size_t taken = end - kFront;
  origin_ += static_cast<std::int64_t>(taken);
  begin_ = kFront;
  scanned_ -= std::min(scanned_ - kFront, taken);
  end_ -= taken;
}

Trace TraceReader::finish() {
  const std::int64_t size = bytes_read();
  ended_ = true;
  process();
  if (state_ == State::start) {
    throw TraceError("the file is empty; record the trace again", 0);
  }
  if (state_ != State::done) {
    throw TraceError(
        "the file ends in the middle of the trace: it was cut while being written or copied; record or copy it again",
        size, decoders_.event_count());
  }
  if (!saw_events_) {
    throw TraceError(
        "this JSON holds no \"traceEvents\" array, so it is not a profiler trace; "
        "record one with: xmem-fast capture -o trace.json.gz -- python train.py");
  }
  Trace trace = decoders_.finish();
  trace.bytes = size;
  trace.metadata = std::move(metadata_);
  trace.distributed = std::move(distributed_);
  return trace;
}

void TraceReader::fail_not_a_trace(std::size_t index) {
  decoders_.event_count();  // throws first what a worker found
  throw TraceError(
      "not the JSON of a profiler trace; record one with: xmem-fast capture -o trace.json.gz -- python train.py",
      offset_of(index));
}

namespace {

Trace read_file(const std::string& path, const Progress& progress, std::size_t threads,
                const OperatorNames& with_inputs) {
  const InputFile file = open_input(path);
  if (!file) throw TraceError(std::string("cannot be opened: ") + std::strerror(errno) + "; check the path");
  std::setvbuf(file.get(), nullptr, _IONBF, 0);  // pieces go straight into the reader's window
  const std::int64_t size = size_of(file.get());
  TraceReader reader(threads, with_inputs);
  auto reported = Clock::now();
  std::int64_t reported_bytes = 0;
  for (;;) {
    const std::span<char> room = reader.prepare(kFilePiece);
    const std::size_t got = std::fread(room.data(), 1, room.size(), file.get());
    if (got == 0 && std::ferror(file.get()) != 0 && errno == EINTR) {
      std::clearerr(file.get());
      if (progress && !progress(reader.bytes_read())) throw Interrupted{};
      continue;
    }
    if (got == 0 && std::ferror(file.get()) != 0) {
      throw TraceError(std::string("cannot be read: ") + std::strerror(errno) + "; check the file",
                       reader.bytes_read());
    }
    reader.commit(got);
    const auto now = Clock::now();
    if (now - reported >= kProgressEvery || reader.bytes_read() - reported_bytes >= kProgressBytes) {
      reported = now;
      reported_bytes = reader.bytes_read();
      if (progress && !progress(reader.bytes_read())) throw Interrupted{};
    }
    if (got != 0) continue;
    if (reader.bytes_read() < size) {
      throw TraceError("the file became shorter while it was being read: it had " + std::to_string(size) +
                           " bytes; read it again when nothing writes to it",
                       reader.bytes_read());
    }
    return reader.finish();
  }
}

}  // namespace

Trace read_trace_file(const std::string& path, const Progress& progress, std::size_t threads,
                      const OperatorNames& with_inputs) {
  try {
    return read_file(path, progress, threads, with_inputs);
  } catch (const NeedsOneThread&) {
    return read_file(path, progress, 1, with_inputs);
  }
}

}  // namespace xmem::trace
