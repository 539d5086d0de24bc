// A trace as read: the two tables, the names, and what the file said besides.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/string_table.hpp"
#include "trace/diagnostics.hpp"
#include "trace/event_table.hpp"

namespace xmem::trace {

inline constexpr std::array<std::string_view, kSpanKinds> kSpanKindNames{
    "operator", "annotation", "module_frame", "user_frame", "module", "line", "host", "iteration"};

struct SkippedKind {
  NameId category;  // `cat`, or `ph` where there is none
  std::int64_t count = 0;
};

struct Trace {
  EventTable events;
  MemoryTable memory;
  StringTable names;
  std::vector<SkippedKind> skipped;
  Diagnostics diagnostics;
  std::vector<std::int32_t> process_of_thread;  // by the number of the thread, as the tables have it
  std::string distributed;  // raw text of the top-level value "distributedInfo", empty when the file has none
  std::string metadata;     // raw text of the top-level value "xmem", empty when the file has none
  std::int64_t bytes = 0;
  std::int64_t event_count = 0;  // elements of the event array, kept or not
};

}  // namespace xmem::trace
