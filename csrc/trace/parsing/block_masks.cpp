#include "trace/parsing/block_masks.hpp"

// SSE2 is part of x86-64. Wider registers are asked for as GCC and Clang do, on systems whose compilers bring how.
#if defined(__x86_64__) || defined(_M_X64)
#define XMEM_SSE2 1
#include <immintrin.h>
#endif
#if defined(__x86_64__) && !defined(_WIN32)
#define XMEM_WIDER_THAN_SSE2 1
#endif

namespace xmem::trace {
namespace {

using FindStructure = void (*)(const char*, std::size_t, BlockMasks*);

#if defined(XMEM_SSE2)

std::uint64_t sse2_equal(const __m128i (&lanes)[4], char wanted) {
  const __m128i pattern = _mm_set1_epi8(wanted);
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto bits = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(lanes[i], pattern)));
    mask |= static_cast<std::uint64_t>(bits) << (16 * i);
  }
  return mask;
}

void load(const char* block, __m128i (&lanes)[4]) {
  for (std::size_t i = 0; i < 4; ++i) lanes[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * i));
}

void find_sse2(const char* text, std::size_t blocks, BlockMasks* masks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    __m128i lanes[4];
    load(text + i * kMaskBlock, lanes);
    masks[i] = {sse2_equal(lanes, '\\'), sse2_equal(lanes, '"'), sse2_equal(lanes, '{'), sse2_equal(lanes, '}')};
  }
}

#endif
#if defined(XMEM_WIDER_THAN_SSE2)

__attribute__((target("avx2"))) std::uint64_t avx2_equal(__m256i low, __m256i high, char wanted) {
  const __m256i pattern = _mm256_set1_epi8(wanted);
  const auto first = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, pattern)));
  const auto second = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, pattern)));
  return first | static_cast<std::uint64_t>(second) << 32;
}

__attribute__((target("avx2"))) void find_avx2(const char* text, std::size_t blocks, BlockMasks* masks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    const char* block = text + i * kMaskBlock;
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 32));
    masks[i] = {avx2_equal(low, high, '\\'), avx2_equal(low, high, '"'), avx2_equal(low, high, '{'),
                avx2_equal(low, high, '}')};
  }
}

__attribute__((target("avx512f,avx512bw"))) void find_avx512(const char* text, std::size_t blocks, BlockMasks* masks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    const __m512i bytes = _mm512_loadu_si512(text + i * kMaskBlock);
    masks[i] = {
        _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\\')), _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('"')),
        _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('{')), _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('}'))};
  }
}

FindStructure widest() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bw")) return find_avx512;
  if (__builtin_cpu_supports("avx2")) return find_avx2;
  return find_sse2;
}

#elif defined(XMEM_SSE2)

FindStructure widest() {
  return find_sse2;
}

#else

void find_bytewise(const char* text, std::size_t blocks, BlockMasks* masks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    const char* block = text + i * kMaskBlock;
    masks[i] = {bytes_equal_to(block, '\\'), bytes_equal_to(block, '"'), bytes_equal_to(block, '{'),
                bytes_equal_to(block, '}')};
  }
}

FindStructure widest() {
  return find_bytewise;
}

#endif

}  // namespace

void find_structure(const char* text, std::size_t blocks, BlockMasks* masks) {
  static const FindStructure find = widest();
  find(text, blocks, masks);
}

std::uint64_t bytes_equal_to(const char* block, char wanted) {
#if defined(XMEM_SSE2)
  __m128i lanes[4];
  load(block, lanes);
  return sse2_equal(lanes, wanted);
#else
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kMaskBlock; ++i) mask |= static_cast<std::uint64_t>(block[i] == wanted) << i;
  return mask;
#endif
}

}  // namespace xmem::trace
