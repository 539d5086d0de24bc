// The entropy codes of Zstandard (RFC 8878, section 4): bits, finite state entropy, Huffman.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace xmem::phantom::zstd {

// The number of the highest set bit; of 0, 0.
inline unsigned highest_bit(std::uint32_t value) {
  return value == 0 ? 0U : 31U - static_cast<unsigned>(__builtin_clz(value));
}

// Bits that are read from the last byte to the first. The highest set bit of the last byte is an end mark. Before the
// first byte there are zeros; whoever reads them sees `left` below 0.
class BackwardBits {
 public:
  BackwardBits(const unsigned char* bytes, std::size_t size) : bytes_(bytes), size_(size) {
    if (size == 0 || bytes[size - 1] == 0) return;
    left_ = static_cast<std::int64_t>(size - 1) * 8 + highest_bit(bytes[size - 1]);
    valid_ = true;
  }

  bool valid() const { return valid_; }
  std::int64_t left() const { return left_; }

  // At most 32 bits.
  std::uint32_t peek(unsigned count) const {
    const std::int64_t begin = left_ - count;
    const std::uint64_t mask = (std::uint64_t{1} << count) - 1;
    if (begin >= 0) {
      const auto byte = static_cast<std::size_t>(begin >> 3);
      return static_cast<std::uint32_t>((word(byte) >> (begin & 7)) & mask);
    }
    if (left_ <= 0) return 0;
    const std::uint64_t there = word(0) & ((std::uint64_t{1} << left_) - 1);
    return static_cast<std::uint32_t>((there << -begin) & mask);
  }
  void skip(unsigned count) { left_ -= count; }
  std::uint32_t read(unsigned count) {
    const std::uint32_t value = peek(count);
    skip(count);
    return value;
  }

 private:
  std::uint64_t word(std::size_t byte) const {
    std::uint64_t value = 0;
    if (size_ - byte >= sizeof value)
      std::memcpy(&value, bytes_ + byte, sizeof value);
    else
      std::memcpy(&value, bytes_ + byte, size_ - byte);
    return value;
  }

  const unsigned char* bytes_;
  std::size_t size_;
  std::int64_t left_ = 0;
  bool valid_ = false;
};

// A table that decodes finite state entropy.
class FseTable {
 public:
  static constexpr unsigned kMostLog = 9;
  static constexpr unsigned kMostSymbols = 256;

  bool known() const { return log_ <= kMostLog; }
  unsigned log() const { return log_; }
  unsigned symbol(unsigned state) const { return entries_[state].symbol; }
  unsigned next(unsigned state, BackwardBits& bits) const {
    return entries_[state].base + bits.read(entries_[state].bits);
  }

  // Of a description, which says how likely each symbol is; returns the bytes that it takes, 0 if it is invalid.
  std::size_t read(const unsigned char* bytes, std::size_t size, unsigned most_symbols, unsigned most_log);

  // Of the likelihoods that are agreed upon (-1: less than one).
  bool build(const std::int16_t* likelihoods, unsigned symbols, unsigned log);

  // Of one symbol, which takes no bits.
  void build_single(unsigned symbol);

 private:
  struct Entry {
    std::uint16_t base;
    std::uint8_t bits;
    std::uint8_t symbol;
  };
  unsigned log_ = kMostLog + 1;
  std::array<Entry, 1U << kMostLog> entries_{};
};

// A table that decodes Huffman codes of at most 11 bits.
class HuffmanTable {
 public:
  bool known() const { return bits_ > 0; }

  // Of a description; returns the bytes that it takes, 0 if it is invalid.
  std::size_t read(const unsigned char* bytes, std::size_t size);

  // Whether a stream holds exactly `count` symbols, which are then in `symbols`.
  bool decode(const unsigned char* bytes, std::size_t size, unsigned char* symbols, std::size_t count) const;

 private:
  static constexpr unsigned kMostBits = 11;
  bool build(const unsigned char* weights, unsigned count);

  struct Entry {
    std::uint8_t symbol;
    std::uint8_t bits;
  };
  unsigned bits_ = 0;
  std::array<Entry, 1U << kMostBits> entries_{};
};

}  // namespace xmem::phantom::zstd
