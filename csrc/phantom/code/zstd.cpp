#include "code/zstd.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "code/zstd_entropy.hpp"

namespace xmem::phantom {
namespace {

using zstd::BackwardBits;
using zstd::FseTable;
using zstd::HuffmanTable;

constexpr std::uint32_t kMagic = 0xfd2fb528;
constexpr std::size_t kMostOfBlock = std::size_t{128} << 10;

std::uint64_t little_endian(const unsigned char* bytes, unsigned count) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < count; ++i) value |= std::uint64_t{bytes[i]} << (8 * i);
  return value;
}

// Lengths of literals and matches: what a code begins at, and how many bits follow (RFC 8878, 3.1.1.3.2.1.1).
struct LengthCode {
  std::uint32_t base;
  unsigned bits;
};
constexpr LengthCode kLiteralLengths[] = {
    {0, 0},   {1, 0},   {2, 0},     {3, 0},     {4, 0},     {5, 0},     {6, 0},      {7, 0},      {8, 0},
    {9, 0},   {10, 0},  {11, 0},    {12, 0},    {13, 0},    {14, 0},    {15, 0},     {16, 1},     {18, 1},
    {20, 1},  {22, 1},  {24, 2},    {28, 2},    {32, 3},    {40, 3},    {48, 4},     {64, 6},     {128, 7},
    {256, 8}, {512, 9}, {1024, 10}, {2048, 11}, {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16}};
constexpr LengthCode kMatchLengths[] = {
    {3, 0},   {4, 0},     {5, 0},     {6, 0},     {7, 0},     {8, 0},      {9, 0},      {10, 0},    {11, 0},
    {12, 0},  {13, 0},    {14, 0},    {15, 0},    {16, 0},    {17, 0},     {18, 0},     {19, 0},    {20, 0},
    {21, 0},  {22, 0},    {23, 0},    {24, 0},    {25, 0},    {26, 0},     {27, 0},     {28, 0},    {29, 0},
    {30, 0},  {31, 0},    {32, 0},    {33, 0},    {34, 0},    {35, 1},     {37, 1},     {39, 1},    {41, 1},
    {43, 2},  {47, 2},    {51, 3},    {59, 3},    {67, 4},    {83, 4},     {99, 5},     {131, 7},   {259, 8},
    {515, 9}, {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13}, {16387, 14}, {32771, 15}, {65539, 16}};
constexpr unsigned kMostOffsetCode = 31;

// The likelihoods that both sides know (RFC 8878, 3.1.1.3.2.2).
constexpr std::int16_t kUsualLiteralLengths[] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                                 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
constexpr std::int16_t kUsualMatchLengths[] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
constexpr std::int16_t kUsualOffsets[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

struct CodeKind {
  const std::int16_t* usual;
  unsigned usual_symbols;
  unsigned usual_log;
  unsigned most_symbols;
  unsigned most_log;
};
constexpr CodeKind kOfLiteralLengths{kUsualLiteralLengths, std::size(kUsualLiteralLengths), 6,
                                     std::size(kLiteralLengths), 9};
constexpr CodeKind kOfOffsets{kUsualOffsets, std::size(kUsualOffsets), 5, kMostOffsetCode + 1, 8};
constexpr CodeKind kOfMatchLengths{kUsualMatchLengths, std::size(kUsualMatchLengths), 6, std::size(kMatchLengths), 9};

// Bytes that are taken from the front.
class Input {
 public:
  Input(const unsigned char* bytes, std::size_t size) : at_(bytes), left_(size) {}
  std::size_t left() const { return left_; }
  const unsigned char* at() const { return at_; }
  const unsigned char* take(std::size_t count) {  // null where there are fewer
    if (count > left_) return nullptr;
    const unsigned char* taken = at_;
    at_ += count;
    left_ -= count;
    return taken;
  }

 private:
  const unsigned char* at_;
  std::size_t left_;
};

class Frame {
 public:
  Frame(unsigned char* unpacked, std::size_t size) : begin_(unpacked), to_(unpacked), end_(unpacked + size) {}

  bool unpack(Input packed) {
    if (!header(packed)) return false;
    for (bool last = false; !last;) {
      const unsigned char* bytes = packed.take(3);
      if (bytes == nullptr) return false;
      const auto block = static_cast<std::uint32_t>(little_endian(bytes, 3));
      last = (block & 1) != 0;
      if (!unpack_block(packed, (block >> 1) & 3, block >> 3)) return false;
    }
    return to_ == end_;
  }

 private:
  static bool header(Input& packed) {
    const unsigned char* magic = packed.take(5);
    if (magic == nullptr || little_endian(magic, 4) != kMagic) return false;
    const unsigned descriptor = magic[4];
    const bool single_segment = (descriptor & 0x20) != 0;
    if ((descriptor & 0x0b) != 0) return false;  // a reserved bit, or a dictionary
    constexpr unsigned kSizeBytes[] = {0, 2, 4, 8};
    unsigned size_bytes = kSizeBytes[descriptor >> 6];
    if (single_segment && size_bytes == 0) size_bytes = 1;
    return packed.take((single_segment ? 0U : 1U) + size_bytes) != nullptr;
  }

  std::size_t room() const { return static_cast<std::size_t>(end_ - to_); }

  bool unpack_block(Input& packed, unsigned type, std::size_t size) {
    enum { kRaw = 0, kRepeated = 1, kCompressed = 2 };
    if (type == kRaw) {
      const unsigned char* bytes = packed.take(size);
      if (bytes == nullptr || size > room()) return false;
      std::memcpy(to_, bytes, size);
      to_ += size;
      return true;
    }
    if (type == kRepeated) {
      const unsigned char* byte = packed.take(1);
      if (byte == nullptr || size > room()) return false;
      std::memset(to_, *byte, size);
      to_ += size;
      return true;
    }
    const unsigned char* bytes = type == kCompressed ? packed.take(size) : nullptr;
    if (bytes == nullptr) return false;
    Input block(bytes, size);
    return read_literals(block) && run_sequences(block);
  }

  bool read_literals(Input& block) {
    enum { kRaw = 0, kRepeated = 1, kCompressed = 2 };
    if (block.left() == 0) return false;
    const unsigned type = block.at()[0] & 3U;
    const unsigned format = (block.at()[0] >> 2) & 3U;
    if (type == kRaw || type == kRepeated) {
      const unsigned header_bytes = format == 1 ? 2 : format == 3 ? 3 : 1;
      const unsigned char* header = block.take(header_bytes);
      if (header == nullptr) return false;
      const std::size_t size = little_endian(header, header_bytes) >> (header_bytes == 1 ? 3 : 4);
      const unsigned char* bytes = block.take(type == kRaw ? size : 1);
      if (bytes == nullptr || size > kMostOfBlock) return false;
      if (type == kRaw)
        literals_.assign(bytes, bytes + size);
      else
        literals_.assign(size, *bytes);
      return true;
    }
    const unsigned header_bytes = format < 2 ? 3 : format + 2;
    const unsigned size_bits = format < 2 ? 10 : format == 2 ? 14 : 18;
    const unsigned char* header = block.take(header_bytes);
    if (header == nullptr) return false;
    const std::uint64_t sizes = little_endian(header, header_bytes) >> 4;
    const std::uint64_t mask = (std::uint64_t{1} << size_bits) - 1;
    const std::size_t size = sizes & mask;
    const std::size_t packed_size = (sizes >> size_bits) & mask;
    const unsigned char* bytes = block.take(packed_size);
    if (bytes == nullptr || size > kMostOfBlock) return false;
    Input packed(bytes, packed_size);
    if (type == kCompressed) {
      const std::size_t described = huffman_.read(packed.at(), packed.left());
      if (described == 0) return false;
      packed.take(described);
    }
    if (!huffman_.known()) return false;
    literals_.resize(size);
    return format == 0 ? huffman_.decode(packed.at(), packed.left(), literals_.data(), size) : read_streams(packed);
  }

  // Four streams, each with a quarter of the literals; the table of their sizes lacks the last.
  bool read_streams(Input packed) {
    const unsigned char* sizes = packed.take(6);
    if (sizes == nullptr) return false;
    const std::size_t quarter = (literals_.size() + 3) / 4;
    if (literals_.size() < 3 * quarter) return false;
    for (unsigned stream = 0; stream < 4; ++stream) {
      const std::size_t size = stream < 3 ? little_endian(sizes + 2 * stream, 2) : packed.left();
      const unsigned char* bytes = packed.take(size);
      const std::size_t count = stream < 3 ? quarter : literals_.size() - 3 * quarter;
      if (bytes == nullptr || !huffman_.decode(bytes, size, literals_.data() + stream * quarter, count)) return false;
    }
    return true;
  }

  bool append_literals(std::size_t count) {
    if (count > literals_.size() - literals_taken_ || count > room()) return false;
    if (count > 0) std::memcpy(to_, literals_.data() + literals_taken_, count);
    literals_taken_ += count;
    to_ += count;
    return true;
  }

  bool append_match(std::size_t offset, std::size_t count) {
    if (offset == 0 || offset > static_cast<std::size_t>(to_ - begin_) || count > room()) return false;
    const unsigned char* source = to_ - offset;
    if (offset >= count) {
      std::memcpy(to_, source, count);
      to_ += count;
    } else {
      for (std::size_t i = 0; i < count; ++i) *to_++ = *source++;  // what is copied may be what was just written
    }
    return true;
  }

  static bool read_table(Input& block, unsigned mode, const CodeKind& kind, FseTable& table) {
    enum { kUsual = 0, kSingle = 1, kDescribed = 2 };
    if (mode == kUsual) return table.build(kind.usual, kind.usual_symbols, kind.usual_log);
    if (mode == kSingle) {
      const unsigned char* symbol = block.take(1);
      if (symbol == nullptr || *symbol >= kind.most_symbols) return false;
      table.build_single(*symbol);
      return true;
    }
    if (mode == kDescribed) {
      const std::size_t described = table.read(block.at(), block.left(), kind.most_symbols, kind.most_log);
      return described > 0 && block.take(described) != nullptr;
    }
    return table.known();  // that of the block before
  }

  bool run_sequences(Input& block) {
    literals_taken_ = 0;
    const unsigned char* first = block.take(1);
    if (first == nullptr) return false;
    std::size_t count = *first;
    if (count >= 128) {
      const unsigned char* more = block.take(count == 255 ? 2 : 1);
      if (more == nullptr) return false;
      count = count == 255 ? little_endian(more, 2) + 0x7f00 : ((count - 128) << 8) + *more;
    }
    if (count == 0) return append_literals(literals_.size());
    const unsigned char* modes = block.take(1);
    if (modes == nullptr) return false;
    if (!read_table(block, *modes >> 6, kOfLiteralLengths, literal_lengths_) ||
        !read_table(block, (*modes >> 4) & 3U, kOfOffsets, offsets_) ||
        !read_table(block, (*modes >> 2) & 3U, kOfMatchLengths, match_lengths_)) {
      return false;
    }
    BackwardBits bits(block.at(), block.left());
    if (!bits.valid()) return false;
    unsigned literal_state = bits.read(literal_lengths_.log());
    unsigned offset_state = bits.read(offsets_.log());
    unsigned match_state = bits.read(match_lengths_.log());
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) {
        literal_state = literal_lengths_.next(literal_state, bits);
        match_state = match_lengths_.next(match_state, bits);
        offset_state = offsets_.next(offset_state, bits);
      }
      const unsigned offset_code = offsets_.symbol(offset_state);
      const LengthCode& match = kMatchLengths[match_lengths_.symbol(match_state)];
      const LengthCode& literal = kLiteralLengths[literal_lengths_.symbol(literal_state)];
      const std::uint64_t offset_value = (std::uint64_t{1} << offset_code) + bits.read(offset_code);
      const std::size_t match_length = match.base + bits.read(match.bits);
      const std::size_t literal_length = literal.base + bits.read(literal.bits);
      if (bits.left() < 0 || !append_literals(literal_length)) return false;
      if (!append_match(offset_of(offset_value, literal_length), match_length)) return false;
    }
    return bits.left() == 0 && append_literals(literals_.size() - literals_taken_);
  }

  // Values up to 3 name one of the last three offsets, or one less than the last.
  std::size_t offset_of(std::uint64_t value, std::size_t literal_length) {
    if (value > 3) {
      recent_[2] = recent_[1];
      recent_[1] = recent_[0];
      recent_[0] = value - 3;
      return recent_[0];
    }
    const std::size_t place = value - 1 + (literal_length == 0 ? 1 : 0);
    const std::size_t offset = place < 3 ? recent_[place] : recent_[0] - 1;
    if (place > 1) recent_[2] = recent_[1];
    if (place > 0) recent_[1] = recent_[0];
    recent_[0] = offset;
    return offset;
  }

  unsigned char* begin_;
  unsigned char* to_;
  unsigned char* end_;
  std::vector<unsigned char> literals_;
  std::size_t literals_taken_ = 0;
  HuffmanTable huffman_;
  FseTable literal_lengths_;
  FseTable offsets_;
  FseTable match_lengths_;
  std::size_t recent_[3] = {1, 4, 8};
};

}  // namespace

bool unpack_zstd(const void* packed, std::size_t packed_size, void* unpacked, std::size_t size) {
  return Frame(static_cast<unsigned char*>(unpacked), size)
      .unpack(Input(static_cast<const unsigned char*>(packed), packed_size));
}

}  // namespace xmem::phantom
