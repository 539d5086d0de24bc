// Any bytes are a trace that keeps its laws or a TraceError. The way in changes nothing for a text that is JSON or
// becomes so when its bytes are repaired; of another text, a trace that not every way reads says that events were lost.
#include <simdjson.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "trace/parsing/repair_text.hpp"
#include "trace/read_trace.hpp"
#include "trace_laws.hpp"

using xmem::TraceError;
using xmem::fuzz::require;
using xmem::trace::Trace;
using xmem::trace::TraceReader;

namespace {

const xmem::trace::OperatorNames kWithInputs = {"aten::_convolution", "aten::sum"};

struct Outcome {
  std::optional<Trace> trace;
  std::string message;
  std::int64_t offset = -1;
};

Outcome outcome_of(const auto& read, std::int64_t size) {
  Outcome outcome;
  try {
    outcome.trace = read();
    xmem::fuzz::require_laws(*outcome.trace, size);
  } catch (const TraceError& error) {
    outcome.message = error.what();
    outcome.offset = error.byte_offset();
    require(!outcome.message.empty(), "an error says what is wrong");
    require(outcome.offset >= -1 && outcome.offset <= size, "an error lies in the file");
  }
  return outcome;
}

Outcome read_at_once(std::string_view text) {
  return outcome_of(
      [&] {
        TraceReader reader(1, kWithInputs);
        reader.feed(text);
        return reader.finish();
      },
      static_cast<std::int64_t>(text.size()));
}

Outcome read_in_pieces(std::string_view text) {
  return outcome_of(
      [&] {
        TraceReader reader(1, kWithInputs);
        xmem::fuzz::Pieces pieces(text);
        for (std::string_view rest = text; !rest.empty();) {
          const std::size_t piece = pieces.next();
          reader.feed(rest.substr(0, piece));
          rest.remove_prefix(piece);
        }
        return reader.finish();
      },
      static_cast<std::int64_t>(text.size()));
}

Outcome read_file(std::string_view text) {
  static const int file = memfd_create("trace", 0);
  require(ftruncate(file, 0) == 0 && pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
          "the machine has memory for a file");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  return outcome_of([&] { return xmem::trace::read_trace_file(path, nullptr, 1, kWithInputs); },
                    static_cast<std::int64_t>(text.size()));
}

void require_same_columns(const Trace& a, const Trace& b) {
  const xmem::trace::EventTable &spans = a.events, &others = b.events;
  require(spans.kind == others.kind && spans.thread == others.thread && spans.begin_ns == others.begin_ns &&
              spans.end_ns == others.end_ns && spans.sequence_number == others.sequence_number &&
              spans.forward_thread == others.forward_thread,
          "the spans are the same");
  for (std::size_t row = 0; row < spans.size(); ++row) {
    require(a.names[spans.name[row]] == b.names[others.name[row]], "the names are the same");
  }
  const xmem::trace::MemoryTable &memory = a.memory, &other = b.memory;
  require(memory.time_ns == other.time_ns && memory.address == other.address && memory.bytes == other.bytes &&
              memory.device_type == other.device_type && memory.device_index == other.device_index &&
              memory.thread == other.thread && memory.total_allocated == other.total_allocated &&
              memory.total_reserved == other.total_reserved,
          "the memory instants are the same");
}

// Every detail. Of a text that is not JSON, the core may see more or less of the damage in another window: what it
// skips it does not check.
void require_same_trace(const Trace& a, const Trace& b) {
  require_same_columns(a, b);
  require(a.event_count == b.event_count, "as many events were seen");
  const auto& found = a.diagnostics.all();
  const auto& others = b.diagnostics.all();
  require(found.size() == others.size(), "the problems are the same");
  for (std::size_t i = 0; i < found.size(); ++i) {
    require(found[i].problem == others[i].problem && found[i].count == others[i].count &&
                found[i].first_offset == others[i].first_offset,
            "each problem is counted and located alike");
  }
}

bool lost_events(const Trace& trace) {
  return std::ranges::any_of(trace.diagnostics.all(), [](const xmem::trace::Diagnostic& found) {
    return found.problem == xmem::trace::Problem::malformed_event;
  });
}

// Lost quotes may hide each other: read in pieces, such a text may end inside a damaged event, or go on after another
// bracket. What one way refuses, the other refuses too, or says that events were lost.
void require_same(const Outcome& a, const Outcome& b, bool every_detail) {
  if (!every_detail && !(a.trace && b.trace)) {
    const Outcome& read = a.trace ? a : b;
    require(!read.trace || lost_events(*read.trace), "a trace that another way refuses has lost events");
    return;
  }
  require(a.trace.has_value() == b.trace.has_value(), "both ways give a trace, or both an error");
  require(a.message == b.message && a.offset == b.offset, "the errors are the same");
  if (!a.trace || !every_detail) return;
  require(a.trace->metadata == b.trace->metadata, "the metadata is the same");
  require_same_trace(*a.trace, *b.trace);
}

bool is_json(std::string_view text) {
  simdjson::dom::parser parser;
  return parser.parse(simdjson::padded_string(text)).error() == simdjson::SUCCESS;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = xmem::fuzz::as_text(data, size);
  const Outcome expected = read_at_once(text);
  require_same(expected, read_file(text), true);  // in pieces as large as those of `feed`
  require_same(expected, read_in_pieces(text), is_json(xmem::trace::repair_text(text)));
  return 0;
}
