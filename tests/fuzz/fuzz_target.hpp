// What the fuzz targets share: a law that ends the program when it is broken, and values drawn from fuzzed bytes.
//
// A target is one function with libFuzzer's signature. clang links it to libFuzzer; any other compiler links it to
// standalone_main.cpp, which replays the corpus and mutates it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace xmem::fuzz {

inline void require(bool holds, const char* law) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", law);
  std::abort();
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Numbers made of the input's bytes; zeros after its end.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  bool flag() { return (byte() & 1) != 0; }
  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte();
    return value;
  }
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : static_cast<std::size_t>(number(2)) % limit; }
  // 0 to 2^62, small and large ones alike: a byte says how many bits, a few more which.
  std::int64_t size() {
    const unsigned bits = byte() % 63U;
    return static_cast<std::int64_t>((std::uint64_t{1} << bits) | (number(4) & ((std::uint64_t{1} << bits) - 1)));
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// Lengths of the pieces that a text arrives in, drawn from the text itself, so that a finding needs no second file.
class Pieces {
 public:
  explicit Pieces(std::string_view text) : left_(text.size()) {
    for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  std::size_t next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    const std::uint64_t longest = std::uint64_t{1} << (state_ >> 60);  // 1 to 2^15
    const std::size_t piece = std::min<std::size_t>(left_, 1 + (state_ >> 20) % longest);
    left_ -= piece;
    return piece;
  }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325ULL;
  std::size_t left_;
};

}  // namespace xmem::fuzz
