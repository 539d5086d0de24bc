#include "trace/event_splitter.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace xmem::trace {
namespace {

constexpr std::size_t kBlock = 64;

#if defined(__SSE2__)
struct Bytes64 {
  explicit Bytes64(const char* block) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * i));
    }
  }
  std::uint64_t equal_to(char wanted) const {
    const __m128i pattern = _mm_set1_epi8(wanted);
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto bits = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(lanes[i], pattern)));
      mask |= static_cast<std::uint64_t>(bits) << (16 * i);
    }
    return mask;
  }
  __m128i lanes[4];
};
#else
struct Bytes64 {
  explicit Bytes64(const char* block) : bytes(block) {}
  std::uint64_t equal_to(char wanted) const {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kBlock; ++i) mask |= static_cast<std::uint64_t>(bytes[i] == wanted) << i;
    return mask;
  }
  const char* bytes;
};
#endif

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
  std::size_t base = 0;
  for (; base + kBlock <= text.size(); base += kBlock) {
    if (!walk(masks_of(text.data() + base, kBlock), base, cut)) return cut;
  }
  if (base < text.size()) {
    char tail[kBlock];
    std::memset(tail, ' ', kBlock);
    std::memcpy(tail, text.data() + base, text.size() - base);
    walk(masks_of(tail, text.size() - base), base, cut);
  }
  return cut;
}

EventSplitter::Masks EventSplitter::masks_of(const char* block, std::size_t length) {
  const Bytes64 bytes(block);
  const std::uint64_t backslashes = bytes.equal_to('\\');
  std::uint64_t quotes = bytes.equal_to('"');
  if ((backslashes | escape_) != 0) quotes &= ~escaped_bytes(backslashes, length, escape_);
  const std::uint64_t inside = prefix_xor(quotes) ^ in_string_;
  in_string_ = static_cast<std::uint64_t>(-static_cast<std::int64_t>(inside >> 63));
  return {bytes.equal_to('{') & ~inside, bytes.equal_to('}') & ~inside, bytes.equal_to('[') & ~inside,
          bytes.equal_to(']') & ~inside};
}

// Walks the braces of one block; false when the array has ended.
bool EventSplitter::walk(const Masks& masks, std::size_t base, Cut& cut) {
  std::uint64_t braces = masks.open | masks.close;
  std::uint64_t rest = ~std::uint64_t{0};  // bytes after the last brace
  while (braces != 0) {
    const std::uint64_t bit = braces & -braces;
    if (depth_ == 0 && !walk_between_events(masks, rest & (bit - 1), base, cut)) return false;
    if ((masks.open & bit) != 0) {
      ++depth_;
    } else if (depth_ > 0 && --depth_ == 0 && array_depth_ == 0) {
      cut.last_event_end = base + static_cast<std::size_t>(std::countr_zero(bit)) + 1;
      if (cut.first_event_end == kNone) cut.first_event_end = cut.last_event_end;
    }
    braces &= braces - 1;
    rest = ~(bit | (bit - 1));
  }
  return depth_ != 0 || walk_between_events(masks, rest, base, cut);
}

// Brackets among these bytes, which lie outside of all braces.
bool EventSplitter::walk_between_events(const Masks& masks, std::uint64_t bytes, std::size_t base, Cut& cut) {
  for (std::uint64_t brackets = (masks.array_open | masks.array_close) & bytes; brackets != 0;
       brackets &= brackets - 1) {
    const std::uint64_t bit = brackets & -brackets;
    if ((masks.array_open & bit) != 0) {
      ++array_depth_;
    } else if (--array_depth_ < 0) {
      cut.array_end = base + static_cast<std::size_t>(std::countr_zero(bit));
      return false;
    }
  }
  return true;
}

}  // namespace xmem::trace
