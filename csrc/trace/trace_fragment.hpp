// What one decoder made of the windows that it was given, and how the fragments of several decoders become one trace.
//
// Windows are numbered in the order of the file. A fragment notes how far each of its tables had grown at the end of
// each window, so the rows, names and threads can be put back into the order of the file: the trace is the same for any
// number of decoders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/string_table.hpp"
#include "trace/diagnostics.hpp"
#include "trace/event_table.hpp"
#include "trace/trace.hpp"

namespace xmem::trace {

struct TraceFragment {
  struct Extent {
    std::int64_t window = -1;  // number of the window that ended here
    std::size_t spans = 0;
    std::size_t memory = 0;
    std::size_t names = 0;
    std::size_t threads = 0;
    std::size_t skipped = 0;
  };

  EventTable events;
  MemoryTable memory;
  // `Ev Idx` of each row, -1 where the file has none.
  std::vector<std::int64_t> span_index;
  std::vector<std::int64_t> memory_index;
  StringTable names;
  StringTable threads;  // process and thread as written, with a zero byte between
  std::vector<SkippedKind> skipped;
  Diagnostics diagnostics;
  std::int64_t event_count = 0;
  std::vector<Extent> extents;  // ascending in every field

  Extent extent(std::int64_t window) const;  // as the tables are now
};

// Puts the fragments together and sorts the tables; the fragments are spent. Metadata and length are the reader's.
Trace assemble_trace(std::vector<TraceFragment> fragments);

}  // namespace xmem::trace
