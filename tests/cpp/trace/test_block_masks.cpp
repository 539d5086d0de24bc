#include <array>
#include <random>
#include <string>
#include <string_view>

#include "testing.hpp"
#include "trace/parsing/block_masks.hpp"

using xmem::trace::BlockMasks;
using xmem::trace::bytes_equal_to;
using xmem::trace::find_structure;
using xmem::trace::kMaskBlock;

TEST(every_bit_stands_for_its_byte) {
  constexpr std::string_view kAlphabet = "\\\"{}[]a\xFF";
  constexpr std::size_t kBlocks = 5;
  std::mt19937 random(3);
  std::string text(1 + kBlocks * kMaskBlock, ' ');
  for (char& byte : text) byte = kAlphabet[random() % kAlphabet.size()];
  const char* const begin = text.data() + 1;  // no alignment is asked for
  std::array<BlockMasks, kBlocks> masks;
  find_structure(begin, kBlocks, masks.data());
  for (std::size_t i = 0; i < kBlocks * kMaskBlock; ++i) {
    const BlockMasks& block = masks[i / kMaskBlock];
    const auto bit = [i](std::uint64_t mask) { return (mask >> (i % kMaskBlock) & 1) != 0; };
    CHECK_EQUAL(bit(block.backslashes), begin[i] == '\\');
    CHECK_EQUAL(bit(block.quotes), begin[i] == '"');
    CHECK_EQUAL(bit(block.open), begin[i] == '{');
    CHECK_EQUAL(bit(block.close), begin[i] == '}');
    CHECK_EQUAL(bit(bytes_equal_to(begin + i / kMaskBlock * kMaskBlock, ']')), begin[i] == ']');
  }
}
