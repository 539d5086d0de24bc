#include "trace/diagnostics.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace xmem::trace {
namespace {
constexpr std::array kProblems{
    ProblemInfo{Problem::malformed_event, "malformed_event", Severity::data_loss,
                "events that are not JSON were dropped"},
    ProblemInfo{Problem::repaired_text, "repaired_text", Severity::info,
                "invalid UTF-8 or control characters in names were replaced"},
    ProblemInfo{Problem::bad_event, "bad_event", Severity::data_loss,
                "events that lack a required field, or have one of the wrong type, were dropped"},
    ProblemInfo{Problem::bad_duration, "bad_duration", Severity::info,
                "spans without a duration, or with a negative one, were treated as empty"},
    ProblemInfo{Problem::empty_memory_event, "empty_memory_event", Severity::info,
                "memory events of zero bytes were ignored"},
    ProblemInfo{Problem::missed_free, "missed_free", Severity::data_loss,
                "an address was allocated again while still in use: its free is missing from the trace"},
    ProblemInfo{Problem::free_size_mismatch, "free_size_mismatch", Severity::info,
                "a free has a different size from its allocation; the allocation's size was kept"},
    ProblemInfo{Problem::free_of_unknown_address, "free_of_unknown_address", Severity::info,
                "memory that was allocated before the trace began was freed"},
};
}  // namespace

const ProblemInfo& info_of(Problem problem) {
  return kProblems[static_cast<std::size_t>(problem)];
}

void Diagnostics::add(Problem problem, std::int64_t byte_offset) {
  auto known = std::ranges::find(found_, problem, &Diagnostic::problem);
  if (known == found_.end()) known = found_.insert(found_.end(), Diagnostic{problem, 0, byte_offset});
  ++known->count;
}

void Diagnostics::add(const Diagnostics& others) {
  for (const Diagnostic& other : others.found_) {
    const auto known = std::ranges::find(found_, other.problem, &Diagnostic::problem);
    if (known == found_.end()) {
      found_.push_back(other);
    } else {
      known->count += other.count;
      known->first_offset = std::min(known->first_offset, other.first_offset);
    }
  }
  // One event adds its problems in the order in which they are declared.
  std::ranges::sort(found_, {}, [](const Diagnostic& found) { return std::pair(found.first_offset, found.problem); });
}

}  // namespace xmem::trace
