// What holds for every trace that was read, however damaged its text.
#pragma once

#include <numeric>

#include "fuzz_target.hpp"
#include "trace/trace.hpp"

namespace xmem::fuzz {

inline void require_name(const trace::Trace& trace, NameId name) {
  require(name.value >= -1 && name.value < static_cast<std::int32_t>(trace.names.size()), "names are known");
}

inline void require_spans_in_order(const trace::EventTable& spans) {
  for (std::size_t row = 0; row < spans.size(); ++row) {
    require(static_cast<std::size_t>(spans.kind[row]) < trace::kSpanKinds, "kinds are known");
    require(spans.thread[row] >= 0, "every span is on a thread");
    require(spans.begin_ns[row] <= spans.end_ns[row], "no span ends before it begins");
    if (row == 0 || spans.thread[row - 1] < spans.thread[row]) continue;
    require(spans.thread[row - 1] == spans.thread[row], "spans are sorted by thread");
    require(spans.begin_ns[row - 1] <= spans.begin_ns[row], "then by begin");
    require(spans.begin_ns[row - 1] < spans.begin_ns[row] || spans.end_ns[row - 1] >= spans.end_ns[row],
            "longest first");
  }
}

inline void require_laws(const trace::Trace& trace, std::int64_t bytes) {
  const trace::EventTable& spans = trace.events;
  const trace::MemoryTable& memory = trace.memory;
  for (const std::size_t rows :
       {spans.name.size(), spans.thread.size(), spans.begin_ns.size(), spans.end_ns.size(),
        spans.sequence_number.size(), spans.forward_thread.size(), spans.input_types.size(), spans.inputs.size()}) {
    require(rows == spans.size(), "columns of spans are of one length");
  }
  for (const std::size_t rows :
       {memory.address.size(), memory.bytes.size(), memory.device_type.size(), memory.device_index.size(),
        memory.thread.size(), memory.total_allocated.size(), memory.total_reserved.size()}) {
    require(rows == memory.size(), "columns of memory instants are of one length");
  }
  require_spans_in_order(spans);
  require(std::ranges::is_sorted(memory.time_ns), "memory instants are sorted by time");
  for (const NameId name : spans.name) require(name.value >= 0, "every span has a name");
  for (const NameId name : spans.name) require_name(trace, name);
  for (const NameId name : spans.input_types) require_name(trace, name);
  for (const NameId name : spans.inputs) require_name(trace, name);

  std::int64_t accounted = static_cast<std::int64_t>(spans.size() + memory.size());
  for (const trace::SkippedKind& skipped : trace.skipped) {
    require_name(trace, skipped.category);
    accounted += skipped.count;
  }
  for (const trace::Diagnostic& found : trace.diagnostics.all()) {
    require(found.count > 0, "a problem occurs");
    require(found.first_offset >= 0 && found.first_offset < bytes, "a problem lies in the file");
    const bool dropped = found.problem == trace::Problem::malformed_event || found.problem == trace::Problem::bad_event;
    accounted += dropped ? found.count : 0;
  }
  require(accounted == trace.event_count, "every event is kept, skipped or counted as a problem");
  require(trace.bytes == bytes, "every byte is counted");
}

}  // namespace xmem::fuzz
