#include "libraries/cufft_sizes.hpp"

#include <algorithm>

// The rules are fitted to 27,961 plans measured on an H200 with CUDA 13.0 (bench/gpu/results, libraries), of
// which 99.3% come out exactly. How much a pass takes was always as it is here. Which lengths need only one pass is a
// list of kernels in cuFFT, of which we know no rule: what stands here says too often that there is none, which gives
// the larger work area, and too rarely for a few dense lengths (3000 and 3840 doubles, 12000 of both). Not measured:
// real numbers that are apart, composites of a prime above 127, and of one above 31 from 130 on.
namespace xmem::phantom {
namespace {

constexpr std::int64_t kHalfBytes = 4;   // of a complex number
constexpr std::int64_t kFloatBytes = 8;  // likewise

// So many transforms occupy every multiprocessor with kernels that keep a long one to a single multiprocessor.
// Measured: more than 64, and 256 do; assumed: the 132 multiprocessors of the H200.
constexpr std::int64_t kMany = 132;

std::int64_t largest_prime_factor(std::int64_t n) {
  std::int64_t largest = 1;
  for (std::int64_t factor = 2; factor * factor <= n; ++factor) {
    for (; n % factor == 0; n /= factor) largest = factor;
  }
  return std::max(largest, n);
}

bool power_of(std::int64_t prime, std::int64_t n) {
  while (n > 1 && n % prime == 0) n /= prime;
  return n == 1;
}

std::int64_t rounded_up(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 1024;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The least product of 2, 3 and 5 that is not below n.
std::int64_t next_smooth(std::int64_t n) {
  std::int64_t least = 2 * n;
  for (std::int64_t fives = 1; fives < 2 * n; fives *= 5) {
    for (std::int64_t threes = fives; threes < 2 * n; threes *= 3) {
      std::int64_t product = threes;
      while (product < n) product *= 2;
      least = std::min(least, product);
    }
  }
  return least;
}

// A length, of which all rules need the factors.
class Length {
 public:
  Length(std::int64_t n, std::size_t complex_bytes)
      : n_(n), bytes_(static_cast<std::int64_t>(complex_bytes)), prime_(largest_prime_factor(n)) {}

  bool power_of_two() const { return power_of(2, n_); }

  // A prime above 127 is left to Bluestein's algorithm, a convolution.
  bool bluestein() const { return prime_ > 127; }

  std::int64_t convolution() const {
    constexpr std::int64_t kLongestPowerOfTwo = 8192;
    std::int64_t power = 1;
    while (power < 2 * n_ - 1) power *= 2;
    return power <= kLongestPowerOfTwo ? power : next_smooth(2 * n_ - 1);
  }

  bool convolved_in_one_kernel() const {
    constexpr std::int64_t kMost = std::int64_t{64} << 10;
    return convolution() * std::max(bytes_, kFloatBytes) <= kMost;
  }

  // Complex numbers that are adjacent.
  bool dense_in_one_kernel(std::int64_t batch) const {
    constexpr std::int64_t kSharedMemory = std::int64_t{227} << 10;  // of a block on a Hopper
    constexpr std::int64_t kLargestOfSevens = std::int64_t{128} << 10;
    constexpr std::int64_t kLargestRadix = 31;       // with others: alone up to 127
    constexpr std::int64_t kLongestOfOthers = 1331;  // of a prime from 11 on, as far as measured
    if (bluestein()) return convolved_in_one_kernel();
    if (power_of_two()) {
      if (bytes_ == kHalfBytes) return n_ <= 8192;
      return n_ <= 16384 || (bytes_ == kFloatBytes && n_ == 32768 && batch >= kMany);
    }
    if (prime_ > 7) return prime_ == n_ || (prime_ <= kLargestRadix && n_ <= kLongestOfOthers);
    return n_ * bytes_ <= (prime_ == 7 ? kLargestOfSevens : kSharedMemory);
  }

  // Complex numbers that are apart.
  bool strided_in_one_kernel(std::int64_t batch) const {
    if (bluestein()) return convolved_in_one_kernel();
    if (bytes_ == kHalfBytes) return n_ <= 8192;
    if (bytes_ != kFloatBytes) {
      if (power_of_two()) return n_ <= 2048;
      return n_ <= (power_of(prime_, n_) ? 3125 : 512) && small_kernel();
    }
    if (prime_ <= 3 && n_ > 1024) return n_ <= 2304 || (n_ <= 8192 && batch >= kMany);
    return n_ <= (power_of(prime_, n_) ? 2401 : 1024) && small_kernel();
  }

  // From or to real numbers.
  bool real_in_one_kernel(std::int64_t batch) const {
    if (bluestein()) return false;
    if (power_of_two()) {
      if (bytes_ == kHalfBytes) return n_ <= 8192;
      if (bytes_ != kFloatBytes) return n_ <= 4096;
      return n_ <= 16384 || (n_ <= 65536 && batch >= kMany);
    }
    return n_ <= (power_of(prime_, n_) ? 3125 : 1080) && small_kernel();
  }

 private:
  // A kernel of the kind that also real and strided numbers have, as far as the factors decide: powers of a prime and
  // products of primes up to 11, with exceptions; dense complex numbers have more.
  bool small_kernel() const {
    if (n_ <= 32 || power_of(prime_, n_)) return true;
    if (prime_ > 11) return bytes_ == kFloatBytes && prime_ <= 23 && n_ % 4 == 0 && n_ >= 64 && n_ <= 128;
    if (n_ % 49 == 0) return false;
    return n_ % 25 != 0 || n_ % 8 == 0 || (n_ % 2 == 0 && n_ <= 300);
  }

  std::int64_t n_;
  std::int64_t bytes_;
  std::int64_t prime_;
};

// Bluestein's algorithm takes the padded signal twice.
std::int64_t convolutions(std::int64_t elements, std::int64_t transforms, std::int64_t bytes) {
  return 2 * rounded_up(elements * transforms * bytes);
}

std::int64_t complex_pass(const Transform& transform, std::int64_t n, std::int64_t transforms, bool strided) {
  const Length length(n, transform.complex_bytes);
  const auto bytes = static_cast<std::int64_t>(transform.complex_bytes);
  if (strided ? length.strided_in_one_kernel(transforms) : length.dense_in_one_kernel(transforms)) return 0;
  if (length.bluestein()) return convolutions(length.convolution(), transforms, bytes);
  return n * transforms * bytes;  // a second pass has to read what the first one wrote
}

// Real numbers along the last dimension. Without a kernel of its own, an even length is transformed as a complex one of
// half the length, in the work area; of odd ones a complex one takes two, from batches beside each other.
std::int64_t real_pass(const Transform& transform, std::int64_t n, std::int64_t lines) {
  const auto bytes = static_cast<std::int64_t>(transform.complex_bytes);
  if (Length(n, transform.complex_bytes).real_in_one_kernel(lines * transform.batch)) return 0;
  const bool even = n % 2 == 0;
  const std::int64_t inner = even ? n / 2 : n;
  const std::int64_t transforms = lines * (even ? transform.batch : (transform.batch + 1) / 2);
  const Length length(inner, transform.complex_bytes);
  const bool one_kernel = length.dense_in_one_kernel(transforms);
  const bool convolved = !one_kernel && length.bluestein();
  // Several passes leave room for one element more, that in the middle of the spectrum.
  const std::int64_t line = one_kernel ? inner : inner + 1;
  if (convolved) {
    return inner * transforms * bytes + convolutions(length.convolution() + 1, transforms, bytes);
  }
  if (!even) return inner * transforms * bytes + rounded_up(line * transforms * bytes);
  // Of halves: as measured with 37 batches, and not with 1 and 3.
  const bool twice = bytes == kHalfBytes && transform.batch > 3 && transform.batch % 2 != 0;
  return twice ? inner * transforms * bytes + rounded_up(line * transforms * bytes) : line * transforms * bytes;
}

}  // namespace

int refusal_of(const Transform& transform) {
  constexpr int kSetupFailed = 7;
  constexpr int kNotSupported = 16;
  if (transform.complex_bytes != static_cast<std::size_t>(kHalfBytes)) return 0;
  // Documented are powers of two; the kernel of Bluestein's algorithm takes halves, too, though not real ones.
  for (int i = 0; i < transform.rank; ++i) {
    const Length length(transform.sizes[static_cast<unsigned>(i)], transform.complex_bytes);
    if (!length.power_of_two() && !(length.bluestein() && length.convolved_in_one_kernel())) return kNotSupported;
  }
  const Length last(transform.sizes[static_cast<unsigned>(transform.rank - 1)], transform.complex_bytes);
  return transform.real && last.bluestein() ? kSetupFailed : 0;
}

// The dimensions are passes, one after the other, that share a work area.
std::size_t work_bytes_of(const Transform& transform) {
  const auto last = static_cast<unsigned>(transform.rank - 1);
  const std::int64_t n = transform.sizes[last];
  const std::int64_t kept = transform.real ? n / 2 + 1 : n;
  std::int64_t lines = 1;
  for (unsigned i = 0; i < last; ++i) lines *= transform.sizes[i];
  std::int64_t most = transform.real ? real_pass(transform, n, lines)
                                     : complex_pass(transform, n, lines * transform.batch, transform.strided);
  for (unsigned i = 0; i < last; ++i) {
    const std::int64_t size = transform.sizes[i];
    most = std::max(most, complex_pass(transform, size, lines / size * kept * transform.batch, true));
  }
  return static_cast<std::size_t>(most);
}

}  // namespace xmem::phantom
