// The columns that a trace is read into: spans, and memory instants. Rows follow docs/trace_model.md, section 3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/ids.hpp"
#include "base/interval.hpp"
#include "base/units.hpp"

namespace xmem::trace {

enum class SpanKind : std::uint8_t {
  operation = 0,  // "operator" in every name that a user sees
  annotation = 1,
  module_frame = 2,
  user_frame = 3,
  module = 4,
  line = 5,
  host = 6,
  iteration = 7
};
inline constexpr std::size_t kSpanKinds = 8;

struct SpanRow {
  SpanKind kind = SpanKind::operation;
  NameId name{};
  std::int32_t thread = -1;
  Interval span;
  std::int64_t sequence_number = -1;
  std::int64_t forward_thread = -1;
  NameId input_types{};
  NameId inputs{};
};

// Spans, sorted by thread, begin, longest first, order of occurrence: within a thread, outer spans stand before inner
// ones.
struct EventTable {
  std::vector<SpanKind> kind;
  std::vector<NameId> name;
  std::vector<std::int32_t> thread;
  std::vector<Nanoseconds> begin_ns;
  std::vector<Nanoseconds> end_ns;
  std::vector<std::int64_t> sequence_number;
  std::vector<std::int64_t> forward_thread;
  std::vector<NameId> input_types;
  std::vector<NameId> inputs;

  auto columns() {
    return std::tie(kind, name, thread, begin_ns, end_ns, sequence_number, forward_thread, input_types, inputs);
  }
  std::size_t size() const { return kind.size(); }
  Interval span(std::size_t row) const { return {begin_ns[row], end_ns[row]}; }
  void append(const SpanRow& row);
  void truncate(std::size_t rows);
  // `event_index` breaks ties where every row has one (none is negative), else the order of occurrence does.
  void sort(const std::vector<std::int64_t>& event_index);
};

struct MemoryRow {
  Nanoseconds time_ns = 0;
  std::int64_t address = -1;
  Bytes bytes = 0;
  std::int8_t device_type = 0;
  std::int32_t device_index = -1;
  std::int32_t thread = -1;
  Bytes total_allocated = -1;
  Bytes total_reserved = -1;
};

// Memory instants, sorted by time, order of occurrence.
struct MemoryTable {
  std::vector<Nanoseconds> time_ns;
  std::vector<std::int64_t> address;
  std::vector<Bytes> bytes;
  std::vector<std::int8_t> device_type;
  std::vector<std::int32_t> device_index;
  std::vector<std::int32_t> thread;
  std::vector<Bytes> total_allocated;
  std::vector<Bytes> total_reserved;

  auto columns() {
    return std::tie(time_ns, address, bytes, device_type, device_index, thread, total_allocated, total_reserved);
  }
  std::size_t size() const { return time_ns.size(); }
  void append(const MemoryRow& row);
  void truncate(std::size_t rows);
  void sort(const std::vector<std::int64_t>& event_index);  // as EventTable's
};

}  // namespace xmem::trace
