#include "code/lz4.hpp"

#include <cstring>

namespace xmem::phantom {
namespace {

constexpr std::size_t kLeastMatch = 4;
constexpr unsigned kMoreFollows = 15;

class Reader {
 public:
  Reader(const void* bytes, std::size_t size) : at_(static_cast<const unsigned char*>(bytes)), end_(at_ + size) {}

  bool at_end() const { return at_ == end_; }
  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }
  unsigned byte() { return *at_++; }
  const unsigned char* take(std::size_t count) {
    const unsigned char* taken = at_;
    at_ += count;
    return taken;
  }

  // A length of which four bits stand in the token; false where the block ends within it.
  bool length(unsigned in_token, std::size_t& length) {
    length = in_token;
    if (in_token != kMoreFollows) return true;
    unsigned more = 0;
    do {
      if (at_end()) return false;
      more = byte();
      length += more;
    } while (more == 255);
    return true;
  }

 private:
  const unsigned char* at_;
  const unsigned char* end_;
};

}  // namespace

bool unpack_lz4(const void* packed, std::size_t packed_size, void* unpacked, std::size_t size) {
  Reader from(packed, packed_size);
  auto* const begin = static_cast<unsigned char*>(unpacked);
  unsigned char* to = begin;
  unsigned char* const end = begin + size;
  while (!from.at_end()) {
    const unsigned token = from.byte();
    std::size_t literals = 0;
    if (!from.length(token >> 4, literals)) return false;
    if (literals > from.left() || literals > static_cast<std::size_t>(end - to)) return false;
    if (literals > 0) std::memcpy(to, from.take(literals), literals);
    to += literals;
    if (from.at_end()) break;  // the last sequence is literals alone
    if (from.left() < 2) return false;
    std::size_t offset = from.byte();
    offset |= std::size_t{from.byte()} << 8;
    std::size_t match = 0;
    if (!from.length(token & 15, match)) return false;
    match += kLeastMatch;
    if (offset == 0 || offset > static_cast<std::size_t>(to - begin)) return false;
    if (match > static_cast<std::size_t>(end - to)) return false;
    const unsigned char* source = to - offset;
    if (offset >= match) {
      std::memcpy(to, source, match);
      to += match;
    } else {
      for (std::size_t i = 0; i < match; ++i) *to++ = *source++;  // what is copied may be what was just written
    }
  }
  return to == end;
}

}  // namespace xmem::phantom
