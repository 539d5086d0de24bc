// Any bytes as a memory snapshot: passed or refused, in time and memory that the length bounds.
#include "base/error.hpp"
#include "fuzz_target.hpp"
#include "snapshot/plain_pickle.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    xmem::snapshot::check_plain_pickle(xmem::fuzz::as_text(data, size));
  } catch (const xmem::TraceError& error) {
    xmem::fuzz::require(error.byte_offset() >= 0 && error.byte_offset() <= static_cast<std::int64_t>(size),
                        "the offset lies in the file");
  }
  return 0;
}
