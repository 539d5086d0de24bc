// Reconstructed memory blocks as columns. Rows follow docs/trace_model.md, section 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/units.hpp"

namespace xmem::blocks {

enum BlockFlag : std::uint8_t {
  kBornBefore = 1,   // its free is in the trace, its allocation is not
  kNeverFreed = 2,   // free_ns is kNever
  kOverwritten = 4,  // ended because its address was allocated again
};

// In order of allocation; blocks born before the trace first, in order of their free.
struct BlockTable {
  std::vector<std::int64_t> address;
  std::vector<Bytes> size_bytes;
  std::vector<Nanoseconds> alloc_ns;
  std::vector<Nanoseconds> free_ns;
  std::vector<std::int8_t> device_type;
  std::vector<std::int32_t> device_index;
  std::vector<std::int32_t> thread;       // of the allocation; of the free for blocks born before the trace
  std::vector<std::int32_t> alloc_event;  // row of the MemoryTable, -1 for blocks born before the trace
  std::vector<std::int32_t> free_event;   // row of the MemoryTable that ended it, -1 where none did
  std::vector<std::uint8_t> flags;

  std::size_t size() const { return address.size(); }
};

}  // namespace xmem::blocks
