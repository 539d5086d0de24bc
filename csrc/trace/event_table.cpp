#include "trace/event_table.hpp"

#include <algorithm>
#include <numeric>

namespace xmem::trace {
namespace {

template <class Table>
void resize(Table& table, std::size_t rows) {
  std::apply([rows](auto&... column) { (column.resize(rows), ...); }, table.columns());
}

template <class T>
void permute(std::vector<T>& column, const std::vector<std::uint32_t>& rows) {
  std::vector<T> sorted;
  sorted.reserve(column.size());
  for (const std::uint32_t row : rows) sorted.push_back(column[row]);
  column = std::move(sorted);
}

// `before` orders rows by everything but their occurrence.
template <class Table, class Before>
void sort_rows(Table& table, const std::vector<std::int64_t>& event_index, Before before) {
  const bool indexed = std::ranges::none_of(event_index, [](std::int64_t index) { return index < 0; });
  const auto stands_before = [&](std::uint32_t a, std::uint32_t b) {
    if (before(a, b)) return true;
    if (before(b, a)) return false;
    if (indexed && event_index[a] != event_index[b]) return event_index[a] < event_index[b];
    return a < b;
  };
  std::vector<std::uint32_t> rows(table.size());
  std::iota(rows.begin(), rows.end(), 0U);
  if (std::ranges::is_sorted(rows, stands_before)) return;  // the profiler writes nearly sorted files
  std::ranges::sort(rows, stands_before);
  std::apply([&rows](auto&... column) { (permute(column, rows), ...); }, table.columns());
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
  inputs.push_back(row.inputs);
}

void EventTable::truncate(std::size_t rows) {
  resize(*this, rows);
}

void EventTable::sort(const std::vector<std::int64_t>& event_index) {
  sort_rows(*this, event_index, [this](std::uint32_t a, std::uint32_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (begin_ns[a] != begin_ns[b]) return begin_ns[a] < begin_ns[b];
    return end_ns[a] > end_ns[b];
  });
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
  resize(*this, rows);
}

void MemoryTable::sort(const std::vector<std::int64_t>& event_index) {
  sort_rows(*this, event_index, [this](std::uint32_t a, std::uint32_t b) { return time_ns[a] < time_ns[b]; });
}

}  // namespace xmem::trace
