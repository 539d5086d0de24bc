#include "trace/trace_fragment.hpp"

#include <algorithm>
#include <future>
#include <tuple>
#include <utility>

#include "base/huge_pages.hpp"

namespace xmem::trace {
namespace {

using Extent = TraceFragment::Extent;

// What one window added to one fragment.
struct Part {
  std::size_t fragment;
  Extent begin, end;
};

using Parts = std::vector<Part>;

Parts parts_in_file_order(const std::vector<TraceFragment>& fragments) {
  Parts parts;
  for (std::size_t i = 0; i < fragments.size(); ++i) {
    Extent begin;
    for (const Extent& end : fragments[i].extents) {
      parts.push_back({i, begin, end});
      begin = end;
    }
  }
  std::ranges::sort(parts, {}, [](const Part& part) { return part.end.window; });
  return parts;
}

// New ids of a fragment's names or threads, by the old ones.
using Renaming = std::vector<NameId>;

// Moves the strings of all fragments into one table, in the order of their first use in the file.
std::vector<Renaming> join_strings(const std::vector<TraceFragment>& fragments, const Parts& parts,
                                   StringTable TraceFragment::* table, std::size_t Extent::* extent,
                                   StringTable& joined) {
  std::vector<Renaming> renamings(fragments.size());
  for (const Part& part : parts) {
    for (std::size_t id = part.begin.*extent; id < part.end.*extent; ++id) {
      const std::string_view text = (fragments[part.fragment].*table)[NameId{static_cast<std::int32_t>(id)}];
      renamings[part.fragment].push_back(joined.intern(text));
    }
  }
  return renamings;
}

NameId renamed(const Renaming& renaming, NameId id) {
  return id.is_none() ? id : renaming[static_cast<std::size_t>(id.value)];
}

void rename_threads(std::vector<std::int32_t>& column, const Renaming& threads) {
  for (std::int32_t& thread : column) thread = renamed(threads, NameId{thread}).value;
}

// Appends a part's rows of one column.
template <class T>
void append(std::vector<T>& joined, const std::vector<T>& column, std::size_t begin, std::size_t end) {
  joined.insert(joined.end(), column.begin() + static_cast<std::ptrdiff_t>(begin),
                column.begin() + static_cast<std::ptrdiff_t>(end));
}

// The rows of one column in the order of the file. The fragments' own are given back at once: no more than one column
// of a table exists twice at a time.
template <class ColumnOf>
auto join_column(std::vector<TraceFragment>& fragments, const Parts& parts, std::size_t Extent::* extent,
                 ColumnOf column_of) {
  std::size_t rows = 0;
  for (TraceFragment& fragment : fragments) rows += column_of(fragment).size();
  std::decay_t<decltype(column_of(fragments.front()))> joined;
  reserve_on_huge_pages(joined, rows);
  for (const Part& part : parts) {
    append(joined, column_of(fragments[part.fragment]), part.begin.*extent, part.end.*extent);
  }
  for (TraceFragment& fragment : fragments) column_of(fragment) = {};
  return joined;
}

template <class Table, std::size_t... kColumns>
void join_table(std::vector<TraceFragment>& fragments, const Parts& parts, Table TraceFragment::* table,
                std::size_t Extent::* extent, Table& joined, std::index_sequence<kColumns...>) {
  const auto join_one = [&]<std::size_t kColumn>() {
    std::get<kColumn>(joined.columns()) = join_column(
        fragments, parts, extent,
        [table](TraceFragment& fragment) -> auto& { return std::get<kColumn>((fragment.*table).columns()); });
  };
  (join_one.template operator()<kColumns>(), ...);
}

template <class Table>
Table join_table(std::vector<TraceFragment>& fragments, const Parts& parts, Table TraceFragment::* table,
                 std::size_t Extent::* extent) {
  constexpr std::size_t kColumns = std::tuple_size_v<decltype(std::declval<Table&>().columns())>;
  Table joined;
  join_table(fragments, parts, table, extent, joined, std::make_index_sequence<kColumns>{});
  return joined;
}

std::vector<SkippedKind> join_skipped(const std::vector<TraceFragment>& fragments, const Parts& parts,
                                      const std::vector<Renaming>& names) {
  std::vector<SkippedKind> joined;
  for (const Part& part : parts) {
    for (std::size_t i = part.begin.skipped; i < part.end.skipped; ++i) {
      const SkippedKind& skipped = fragments[part.fragment].skipped[i];
      const NameId category = renamed(names[part.fragment], skipped.category);
      const auto known = std::ranges::find(joined, category, &SkippedKind::category);
      if (known == joined.end()) {
        joined.push_back({category, skipped.count});
      } else {
        known->count += skipped.count;
      }
    }
  }
  return joined;
}

// The fragments as one, sorted. From the names on, spans and memory instants have nothing in common: each table is put
// together by a thread of its own where the system gives one.
TraceFragment join(std::vector<TraceFragment>& fragments) {
  TraceFragment joined;
  const Parts parts = parts_in_file_order(fragments);
  const auto names = join_strings(fragments, parts, &TraceFragment::names, &Extent::names, joined.names);
  const auto threads = join_strings(fragments, parts, &TraceFragment::threads, &Extent::threads, joined.threads);

  std::future<void> spans = std::async([&] {
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      EventTable& events = fragments[i].events;
      for (NameId& name : events.name) name = renamed(names[i], name);
      for (NameId& types : events.input_types) types = renamed(names[i], types);
      for (NameId& inputs : events.inputs) inputs = renamed(names[i], inputs);
      rename_threads(events.thread, threads[i]);
    }
    joined.events = join_table(fragments, parts, &TraceFragment::events, &Extent::spans);
    joined.span_index = join_column(fragments, parts, &Extent::spans,
                                    [](TraceFragment& fragment) -> auto& { return fragment.span_index; });
    joined.events.sort(joined.span_index);
  });

  for (std::size_t i = 0; i < fragments.size(); ++i) {
    rename_threads(fragments[i].memory.thread, threads[i]);
    joined.diagnostics.add(fragments[i].diagnostics);
    joined.event_count += fragments[i].event_count;
  }
  joined.skipped = join_skipped(fragments, parts, names);
  joined.memory = join_table(fragments, parts, &TraceFragment::memory, &Extent::memory);
  joined.memory_index = join_column(fragments, parts, &Extent::memory,
                                    [](TraceFragment& fragment) -> auto& { return fragment.memory_index; });
  joined.memory.sort(joined.memory_index);
  spans.get();
  return joined;
}

TraceFragment sorted(TraceFragment fragment) {
  fragment.events.sort(fragment.span_index);
  fragment.memory.sort(fragment.memory_index);
  return fragment;
}

std::vector<std::int32_t> processes_of(const StringTable& threads) {
  StringTable processes;
  std::vector<std::int32_t> found(threads.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const std::string_view thread = threads[NameId{static_cast<std::int32_t>(i)}];
    found[i] = processes.intern(thread.substr(0, thread.find('\0'))).value;
  }
  return found;
}

}  // namespace

TraceFragment::Extent TraceFragment::extent(std::int64_t window) const {
  return {window, events.size(), memory.size(), names.size(), threads.size(), skipped.size()};
}

Trace assemble_trace(std::vector<TraceFragment> fragments) {
  TraceFragment whole = fragments.size() == 1 ? sorted(std::move(fragments.front())) : join(fragments);
  Trace trace;
  trace.events = std::move(whole.events);
  trace.memory = std::move(whole.memory);
  trace.names = std::move(whole.names);
  trace.skipped = std::move(whole.skipped);
  trace.diagnostics = std::move(whole.diagnostics);
  trace.event_count = whole.event_count;
  trace.process_of_thread = processes_of(whole.threads);
  return trace;
}

}  // namespace xmem::trace
