// Where the bytes stand that JSON's structure hangs on, 64 bytes to a word: bit i says it of byte i.
//
// The widest instructions that the processor has are chosen once, when the program starts; all give the same masks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xmem::trace {

inline constexpr std::size_t kMaskBlock = 64;

struct BlockMasks {
  std::uint64_t backslashes;
  std::uint64_t quotes;
  std::uint64_t open;   // '{'
  std::uint64_t close;  // '}'
};

// Masks of `blocks` blocks of 64 bytes each.
void find_structure(const char* text, std::size_t blocks, BlockMasks* masks);

// Bits of one byte value among the 64 bytes at `block`.
std::uint64_t bytes_equal_to(const char* block, char wanted);

}  // namespace xmem::trace
