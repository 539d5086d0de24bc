#include "trace/event_table.hpp"

#include <algorithm>
#include <numeric>

#include "base/huge_pages.hpp"

namespace xmem::trace {
namespace {

template <class Table>
void resize(Table& table, std::size_t rows) {
  std::apply([rows](auto&... column) { (column.resize(rows), ...); }, table.columns());
}

template <class Table>
void make_room(Table& table) {
  std::apply([](auto&... column) { grow_on_huge_pages(column...); }, table.columns());
}

template <class T>
void permute(std::vector<T>& column, const std::vector<std::uint32_t>& rows) {
  std::vector<T> sorted;
  reserve_on_huge_pages(sorted, column.size());
  for (const std::uint32_t row : rows) sorted.push_back(column[row]);
  column = std::move(sorted);
}

// Where a file of a profiler is out of order, it is in long runs that are: what a thread did, or what another writer
// put in front. A run as short as this is not worth a merge.
constexpr std::size_t kShortRun = 64;

// Merges neighbouring runs, given by the places where they begin and the end, until one is left.
template <class Before>
void merge_runs(std::vector<std::uint32_t>& rows, std::vector<std::size_t> edges, Before before) {
  std::vector<std::uint32_t> merged(rows.size());
  const auto at = [](std::vector<std::uint32_t>& column, std::size_t index) {
    return column.begin() + static_cast<std::ptrdiff_t>(index);
  };
  while (edges.size() > 2) {
    std::vector<std::size_t> left{0};
    for (std::size_t i = 0; i + 1 < edges.size(); i += 2) {
      const std::size_t end = edges[std::min(i + 2, edges.size() - 1)];
      std::merge(at(rows, edges[i]), at(rows, edges[i + 1]), at(rows, edges[i + 1]), at(rows, end),
                 at(merged, edges[i]), before);
      left.push_back(end);
    }
    rows.swap(merged);
    edges = std::move(left);
  }
}

// Where the sorted runs of the rows begin, and the end.
template <class Before>
std::vector<std::size_t> edges_of_runs(const std::vector<std::uint32_t>& rows, Before before) {
  std::vector<std::size_t> edges{0};
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (before(rows[i], rows[i - 1])) edges.push_back(i);
  }
  edges.push_back(rows.size());
  return edges;
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
  std::vector<std::size_t> edges = edges_of_runs(rows, stands_before);
  const std::size_t runs = edges.size() - 1;
  if (runs <= 1) return;
  if (runs * kShortRun > rows.size()) {
    std::ranges::sort(rows, stands_before);
  } else {
    merge_runs(rows, std::move(edges), stands_before);
  }
  std::apply([&rows](auto&... column) { (permute(column, rows), ...); }, table.columns());
}

}  // namespace

void EventTable::append(const SpanRow& row) {
  make_room(*this);
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
  make_room(*this);
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
