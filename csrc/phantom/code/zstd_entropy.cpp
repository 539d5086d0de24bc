#include "code/zstd_entropy.hpp"

namespace xmem::phantom::zstd {
namespace {

// Bits that are read from the first byte to the last.
class ForwardBits {
 public:
  ForwardBits(const unsigned char* bytes, std::size_t size) : bytes_(bytes), bits_(size * 8) {}

  // At most 16 bits; zeros after the end, which `overrun` tells.
  unsigned peek(unsigned count) const {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < 4; ++i) {
      const std::size_t byte = at_ / 8 + i;
      if (byte * 8 < bits_) value |= std::uint32_t{bytes_[byte]} << (8 * i);
    }
    return (value >> (at_ % 8)) & ((1U << count) - 1);
  }
  void skip(unsigned count) { at_ += count; }
  unsigned read(unsigned count) {
    const unsigned value = peek(count);
    skip(count);
    return value;
  }
  bool overrun() const { return at_ > bits_; }
  std::size_t bytes_taken() const { return (at_ + 7) / 8; }

 private:
  const unsigned char* bytes_;
  std::size_t bits_;
  std::size_t at_ = 0;
};

constexpr unsigned kLeastLog = 5;
constexpr unsigned kMostWeightLog = 6;
constexpr unsigned kMostWeight = 12;
constexpr unsigned kDirectWeights = 127;

}  // namespace

std::size_t FseTable::read(const unsigned char* bytes, std::size_t size, unsigned most_symbols, unsigned most_log) {
  ForwardBits bits(bytes, size);
  const unsigned log = bits.read(4) + kLeastLog;
  if (log > most_log || log > kMostLog) return 0;
  std::int16_t likelihoods[kMostSymbols] = {};
  int left = 1 << log;
  unsigned symbol = 0;
  while (left > 0) {
    if (symbol >= most_symbols || bits.overrun()) return 0;
    // Values up to left + 1 take the bits that they need; the smallest of them one bit less.
    const unsigned most = static_cast<unsigned>(left) + 1;
    const unsigned width = highest_bit(most) + 1;
    const unsigned short_ones = (1U << width) - 1 - most;
    const unsigned low = bits.peek(width - 1);
    unsigned value = low;
    if (low < short_ones) {
      bits.skip(width - 1);
    } else {
      value = bits.read(width);
      if (value >= 1U << (width - 1)) value -= short_ones;
    }
    const int likelihood = static_cast<int>(value) - 1;
    left -= likelihood < 0 ? 1 : likelihood;
    likelihoods[symbol++] = static_cast<std::int16_t>(likelihood);
    if (likelihood != 0) continue;
    unsigned zeros = 0;
    do {
      zeros = bits.read(2);
      symbol += zeros;
      if (symbol > most_symbols || bits.overrun()) return 0;
    } while (zeros == 3);
  }
  if (left != 0 || bits.overrun() || !build(likelihoods, symbol, log)) return 0;
  return bits.bytes_taken();
}

bool FseTable::build(const std::int16_t* likelihoods, unsigned symbols, unsigned log) {
  const unsigned size = 1U << log;
  unsigned next[kMostSymbols] = {};
  unsigned high = size;
  for (unsigned symbol = 0; symbol < symbols; ++symbol) {
    if (likelihoods[symbol] != -1) continue;
    entries_[--high].symbol = static_cast<std::uint8_t>(symbol);
    next[symbol] = 1;
  }
  const unsigned step = (size >> 1) + (size >> 3) + 3;
  unsigned at = 0;
  for (unsigned symbol = 0; symbol < symbols; ++symbol) {
    if (likelihoods[symbol] <= 0) continue;
    next[symbol] = static_cast<unsigned>(likelihoods[symbol]);
    for (int i = 0; i < likelihoods[symbol]; ++i) {
      entries_[at].symbol = static_cast<std::uint8_t>(symbol);
      do at = (at + step) & (size - 1);
      while (at >= high);
    }
  }
  if (at != 0) return false;
  for (unsigned state = 0; state < size; ++state) {
    Entry& entry = entries_[state];
    const unsigned number = next[entry.symbol]++;
    entry.bits = static_cast<std::uint8_t>(log - highest_bit(number));
    entry.base = static_cast<std::uint16_t>((number << entry.bits) - size);
  }
  log_ = log;
  return true;
}

void FseTable::build_single(unsigned symbol) {
  entries_[0] = {0, 0, static_cast<std::uint8_t>(symbol)};
  log_ = 0;
}

std::size_t HuffmanTable::read(const unsigned char* bytes, std::size_t size) {
  if (size == 0) return 0;
  unsigned char weights[256] = {};
  unsigned count = 0;
  std::size_t taken = 1;
  if (bytes[0] > kDirectWeights) {
    count = bytes[0] - kDirectWeights;
    taken += (count + 1) / 2;
    if (taken > size) return 0;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned char both = bytes[1 + i / 2];
      weights[i] = i % 2 == 0 ? both >> 4 : both & 15;
    }
  } else {
    taken += bytes[0];
    if (taken > size) return 0;
    FseTable table;
    const std::size_t described = table.read(bytes + 1, bytes[0], kMostWeight + 1, kMostWeightLog);
    if (described == 0) return 0;
    BackwardBits bits(bytes + 1 + described, bytes[0] - described);
    if (!bits.valid()) return 0;
    unsigned states[2] = {bits.read(table.log()), 0};
    states[1] = bits.read(table.log());
    if (bits.left() < 0) return 0;
    // Two states take turns. Where bits run out, the other one has the last symbol.
    for (unsigned turn = 0;; turn ^= 1U) {
      if (count + 2 > 255) return 0;
      weights[count++] = static_cast<unsigned char>(table.symbol(states[turn]));
      states[turn] = table.next(states[turn], bits);
      if (bits.left() >= 0) continue;
      weights[count++] = static_cast<unsigned char>(table.symbol(states[turn ^ 1U]));
      break;
    }
  }
  return build(weights, count) ? taken : 0;
}

// The weight of the last symbol is what is left to a power of two.
bool HuffmanTable::build(const unsigned char* weights, unsigned count) {
  if (count > 255) return false;
  unsigned char all[256] = {};
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (weights[i] > kMostWeight) return false;
    all[i] = weights[i];
    if (weights[i] > 0) sum += 1U << (weights[i] - 1);
  }
  if (sum == 0) return false;
  const unsigned bits = highest_bit(sum) + 1;
  const std::uint32_t left = (1U << bits) - sum;
  if (bits > kMostBits || (left & (left - 1)) != 0) return false;
  all[count] = static_cast<unsigned char>(highest_bit(left) + 1);
  std::size_t at = 0;
  for (unsigned weight = 1; weight <= bits; ++weight) {  // the longest codes first
    for (unsigned symbol = 0; symbol <= count; ++symbol) {
      if (all[symbol] != weight) continue;
      const Entry entry{static_cast<std::uint8_t>(symbol), static_cast<std::uint8_t>(bits + 1 - weight)};
      for (std::size_t end = at + (std::size_t{1} << (weight - 1)); at < end; ++at) {
        if (at >= entries_.size()) return false;
        entries_[at] = entry;
      }
    }
  }
  if (at != std::size_t{1} << bits) return false;
  bits_ = bits;
  return true;
}

bool HuffmanTable::decode(const unsigned char* bytes, std::size_t size, unsigned char* symbols,
                          std::size_t count) const {
  BackwardBits bits(bytes, size);
  if (!bits.valid()) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const Entry entry = entries_[bits.peek(bits_)];
    symbols[i] = entry.symbol;
    bits.skip(entry.bits);
    if (bits.left() < 0) return false;
  }
  return bits.left() == 0;
}

}  // namespace xmem::phantom::zstd
