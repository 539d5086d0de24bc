#include "trace/parsing/event_splitter.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "trace/parsing/block_masks.hpp"

namespace xmem::trace {
namespace {

constexpr std::size_t kBlock = kMaskBlock;
constexpr std::size_t kBlocksAtOnce = 32;

// Bit i of the result is the parity of bits 0..i: between an opening and a closing quote all bits are set.
std::uint64_t prefix_xor(std::uint64_t bits) {
  for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

// Which bytes are escaped by an odd run of backslashes; `carry` says so of the first byte and afterwards of byte
// `length`.
std::uint64_t escaped_bytes(std::uint64_t backslashes, std::size_t length, std::uint64_t& carry) {
  std::uint64_t escaped = carry;
  carry = 0;
  while (backslashes != 0) {
    const int at = std::countr_zero(backslashes);
    backslashes &= backslashes - 1;
    if ((escaped >> at & 1) != 0) continue;
    if (static_cast<std::size_t>(at) + 1 == length) {
      carry = 1;
    } else {
      escaped |= std::uint64_t{2} << at;
    }
  }
  return escaped;
}

}  // namespace

EventSplitter::Cut EventSplitter::scan(std::string_view text) {
  Cut cut;
  std::array<BlockMasks, kBlocksAtOnce> masks;
  std::size_t base = 0;
  while (base + kBlock <= text.size()) {
    const std::size_t blocks = std::min(kBlocksAtOnce, (text.size() - base) / kBlock);
    find_structure(text.data() + base, blocks, masks.data());
    for (std::size_t i = 0; i < blocks; ++i, base += kBlock) {
      if (!walk({text.data() + base, kBlock, base}, masks[i], cut)) return cut;
    }
  }
  if (base < text.size()) {
    char tail[kBlock];
    std::memset(tail, ' ', kBlock);
    std::memcpy(tail, text.data() + base, text.size() - base);
    find_structure(tail, 1, masks.data());
    walk({tail, text.size() - base, base}, masks[0], cut);
  }
  return cut;
}

// Walks the braces of one block; false when the array has ended.
bool EventSplitter::walk(const Block& block, const BlockMasks& masks, Cut& cut) {
  std::uint64_t quotes = masks.quotes;
  if ((masks.backslashes | escape_) != 0) quotes &= ~escaped_bytes(masks.backslashes, block.length, escape_);
  const std::uint64_t inside = prefix_xor(quotes) ^ in_string_;
  in_string_ = static_cast<std::uint64_t>(-static_cast<std::int64_t>(inside >> 63));

  const std::uint64_t open = masks.open & ~inside;
  std::uint64_t braces = open | (masks.close & ~inside);
  std::uint64_t rest = ~std::uint64_t{0};  // bytes after the last brace
  while (braces != 0) {
    const std::uint64_t bit = braces & -braces;
    if (depth_ == 0 && !walk_between_events(block, rest & (bit - 1) & ~inside, cut)) return false;
    if ((open & bit) != 0) {
      ++depth_;
    } else if (depth_ > 0 && --depth_ == 0 && array_depth_ == 0) {
      cut.last_event_end = block.base + static_cast<std::size_t>(std::countr_zero(bit)) + 1;
      if (cut.first_event_end == kNone) cut.first_event_end = cut.last_event_end;
    }
    braces &= braces - 1;
    rest = ~(bit | (bit - 1));
  }
  return depth_ != 0 || walk_between_events(block, rest & ~inside, cut);
}

// Brackets among these bytes, which lie outside of all braces and strings.
bool EventSplitter::walk_between_events(const Block& block, std::uint64_t bytes, Cut& cut) {
  if (bytes == 0) return true;
  const std::uint64_t array_open = bytes_equal_to(block.text, '[') & bytes;
  const std::uint64_t array_close = bytes_equal_to(block.text, ']') & bytes;
  for (std::uint64_t brackets = array_open | array_close; brackets != 0; brackets &= brackets - 1) {
    const std::uint64_t bit = brackets & -brackets;
    if ((array_open & bit) != 0) {
      ++array_depth_;
    } else if (--array_depth_ < 0) {
      cut.array_end = block.base + static_cast<std::size_t>(std::countr_zero(bit));
      return false;
    }
  }
  return true;
}

}  // namespace xmem::trace
