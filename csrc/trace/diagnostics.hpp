// What was wrong with the input, as data: counted by kind, with the place of the first case.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace xmem::trace {

enum class Problem : std::uint8_t {
  malformed_event,         // not JSON; dropped
  repaired_text,           // invalid UTF-8 or a control character in a string; replaced, then read
  bad_event,               // a needed field is missing or of the wrong type; dropped
  bad_duration,            // a span without or with a negative duration; taken as empty
  empty_memory_event,      // zero bytes; ignored
  missed_free,             // an allocation at an address that was still live
  free_size_mismatch,      // a free of another size than was allocated
  free_of_unknown_address  // born before the trace
};

enum class Severity : std::uint8_t { info, data_loss };

struct ProblemInfo {
  Problem problem;
  std::string_view name;
  Severity severity;
  std::string_view explanation;  // for the user
};

const ProblemInfo& info_of(Problem problem);

struct Diagnostic {
  Problem problem;
  std::int64_t count = 0;
  std::int64_t first_offset = -1;  // byte in the uncompressed text, -1 where there is none
};

class Diagnostics {
 public:
  void add(Problem problem, std::int64_t byte_offset = -1);
  void add(const Diagnostics& others);  // found in other parts of the same text
  const std::vector<Diagnostic>& all() const { return found_; }

 private:
  std::vector<Diagnostic> found_;  // in order of first occurrence; a handful at most
};

}  // namespace xmem::trace
