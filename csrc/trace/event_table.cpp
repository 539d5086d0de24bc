#include "trace/event_table.hpp"

#include <algorithm>
#include <numeric>

namespace xmem::trace {
namespace {

template <class T>
void permute(std::vector<T>& column, const std::vector<std::uint32_t>& rows) {
  std::vector<T> sorted(column.size());
  for (std::size_t i = 0; i < rows.size(); ++i) sorted[i] = column[rows[i]];
  column = std::move(sorted);
}

// Rows in the order of `before`, or nothing when they stand in it already: the profiler writes nearly sorted files.
template <class Before>
std::vector<std::uint32_t> sorted_rows(std::size_t size, Before before) {
  bool is_sorted = true;
  for (std::size_t row = 1; row < size && is_sorted; ++row) {
    is_sorted = !before(static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row - 1));
  }
  if (is_sorted) return {};
  std::vector<std::uint32_t> rows(size);
  std::iota(rows.begin(), rows.end(), 0U);
  std::sort(rows.begin(), rows.end(), before);
  return rows;
}

}  // namespace

void EventTable::append(const SpanRow& row) {
  kind.push_back(row.kind);
  name.push_back(row.name);
  thread.push_back(row.thread);
  begin_ns.push_back(row.span.begin);
  end_ns.push_back(row.span.end);
  sequence_number.push_back(row.sequence_number);
  forward_thread.push_back(row.forward_thread);
  input_types.push_back(row.input_types);
}

void EventTable::truncate(std::size_t rows) {
  kind.resize(rows);
  name.resize(rows);
  thread.resize(rows);
  begin_ns.resize(rows);
  end_ns.resize(rows);
  sequence_number.resize(rows);
  forward_thread.resize(rows);
  input_types.resize(rows);
}

void EventTable::sort(const std::vector<std::int64_t>& order) {
  const auto rows = sorted_rows(size(), [&](std::uint32_t a, std::uint32_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (begin_ns[a] != begin_ns[b]) return begin_ns[a] < begin_ns[b];
    if (end_ns[a] != end_ns[b]) return end_ns[a] > end_ns[b];
    return order[a] != order[b] ? order[a] < order[b] : a < b;
  });
  if (rows.empty()) return;
  permute(kind, rows);
  permute(name, rows);
  permute(thread, rows);
  permute(begin_ns, rows);
  permute(end_ns, rows);
  permute(sequence_number, rows);
  permute(forward_thread, rows);
  permute(input_types, rows);
}

void MemoryTable::append(const MemoryRow& row) {
  time_ns.push_back(row.time_ns);
  address.push_back(row.address);
  bytes.push_back(row.bytes);
  device_type.push_back(row.device_type);
  device_index.push_back(row.device_index);
  thread.push_back(row.thread);
  total_allocated.push_back(row.total_allocated);
  total_reserved.push_back(row.total_reserved);
}

void MemoryTable::truncate(std::size_t rows) {
  time_ns.resize(rows);
  address.resize(rows);
  bytes.resize(rows);
  device_type.resize(rows);
  device_index.resize(rows);
  thread.resize(rows);
  total_allocated.resize(rows);
  total_reserved.resize(rows);
}

void MemoryTable::sort(const std::vector<std::int64_t>& order) {
  const auto rows = sorted_rows(size(), [&](std::uint32_t a, std::uint32_t b) {
    if (time_ns[a] != time_ns[b]) return time_ns[a] < time_ns[b];
    return order[a] != order[b] ? order[a] < order[b] : a < b;
  });
  if (rows.empty()) return;
  permute(time_ns, rows);
  permute(address, rows);
  permute(bytes, rows);
  permute(device_type, rows);
  permute(device_index, rows);
  permute(thread, rows);
  permute(total_allocated, rows);
  permute(total_reserved, rows);
}

}  // namespace xmem::trace
