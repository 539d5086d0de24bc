#include "libraries/cusolver_sizes.hpp"

#include <algorithm>
#include <utility>

namespace xmem::phantom::cusolver {

namespace {

constexpr Size parts(Size count, Size each) {
  return (count + each - 1) / each;
}

// Arrays begin at multiples of 32 numbers.
constexpr Size padded(Size count, Size to = 32) {
  return parts(count, to) * to;
}

constexpr Size kTile = 32;      // rows and columns of the tiles of factorisations and rotations
constexpr Size kPanel = 128;    // reflectors that are applied at once
constexpr Size kStatus = 32;    // a padded number for the status
constexpr Size kSmallest = 32;  // up to so many rows a matrix takes one block
constexpr Size kPanelOfReduction = 256;
constexpr Size kReduction = 65536;  // of a reduction to two or three diagonals, whatever the size
constexpr Size kSlack = 256;

// Beside the columns' norms of larger matrices.
constexpr Size if_large(Size n, Size size) {
  return n > kSmallest ? size : 0;
}

// From square matrices on a bidiagonal form is reached directly, of others by way of a QR factorisation.
Size square_gesvd(Size n) {
  return kReduction + kSlack + kPanelOfReduction * n + padded(2 * n * n) + padded(n * n) + 3 * padded(n) +
         if_large(n, padded(n));
}

}  // namespace

// A counter for each tile. Approximate for upper triangles: of these only 5 x 5 was measured, which takes 256 bytes.
Size potrf_bytes(bool upper, Size n) {
  constexpr Size kCounter = 4, kUpperPadding = 256;
  const Size bytes = kHeaderBytes + padded(kCounter * parts(n, kTile) * parts(n, kTile));
  return upper ? padded(bytes, kUpperPadding) : bytes;
}

// For each tile of the diagonal pivots and their rows; and the larger of the counters of the tiles and of what the
// blocks that factor a panel together exchange. From m of about 1600 a panel has clusters of blocks on all
// multiprocessors, of which there are more in higher panels.
Size getrf_bytes(Numbers numbers, Size m, Size n, Size multiprocessors) {
  constexpr Size kCounter = 4, kTileBytes = 256, kMostBlocks = 16;
  constexpr Size kLastWithoutClusters = 1536;
  constexpr Size kBlockBytes = 512, kNumbersOfMultiprocessor = 64;
  const Size tiles = parts(std::min(m, n), kTile);
  Size blocks = 1;
  while (blocks < tiles) blocks *= 2;
  Size exchanged =
      std::max(kTileBytes * std::min(kMostBlocks, blocks), padded(kCounter * parts(m, kTile) * parts(n, kTile)));
  if (m > kLastWithoutClusters) {
    const Size cluster = m <= 2048 ? 4 : m <= 8192 ? 8 : 16;
    exchanged = std::max(
        exchanged, kBlockBytes * cluster + padded(multiprocessors, cluster) * kNumbersOfMultiprocessor * numbers.bytes);
  }
  return kHeaderBytes + kTileBytes * tiles + exchanged;
}

Size potri_elements() {
  return 65536;
}

// Panels of 64 columns, of large matrices of 128; of small ones what a single block takes.
Size sytrf_elements(Numbers numbers, Size n) {
  constexpr Size kFirstOfWidePanels = 4096;  // at most; 4000 is not
  const Size least = numbers.bytes == 4 ? 24608 : numbers.bytes == 8 ? 13328 : 11016;
  return std::max(least, (n < kFirstOfWidePanels ? 64 : 128) * n + 64);
}

// Panels of 1024 rows. High panels do not fit and are factored another way: approximate, for only three such matrices
// were measured (16384 x 8192, 21001 x 3000 and 42001 x 6000; 14001 rows still fit).
Size geqrf_elements(Numbers numbers, Size m, Size n) {
  constexpr Size kRows = 1024, kLeastColumns = 256, kFixed = 512;
  constexpr Size kFirstHigh = 16384, kFirstWide = 8192;
  if (m < kFirstHigh || m <= n) return kRows * (std::max(n, kLeastColumns) + kFixed);
  if (numbers.bytes == 8 && !numbers.complex) return 512 * n;
  if (n < kFirstWide) return 256 * n;
  return (numbers.bytes == 16 ? 324 : 512) * n;
}

// A panel of reflectors, and the larger of what one block takes and of a triangular factor with a panel's product.
Size orgqr_elements(Size m, Size n, Size k) {
  constexpr Size kOneBlock = 32768;
  const Size panel = std::min(k, kPanel);
  return kSlack + padded(m * panel) + std::max(kOneBlock, padded(2 * n * panel) + kPanel * kPanel);
}

// A copy of the reflectors, and their product with the matrix.
Size ormqr_elements(bool left, Size m, Size n, Size k) {
  const Size other = left ? n : m;
  return kReduction + kSlack + kPanelOfReduction * m + (left ? 2 * kPanelOfReduction * n : 0) + padded((m + n) * k) +
         if_large(std::max(m, n), padded(other));
}

// The larger of a reduction to three diagonals and of its reflectors applied to the eigenvectors, beside what dividing
// and conquering takes. Of a batch all arrays are one behind the other.
Size syevd_elements(Size n, Size batch) {
  const Size reduced =
      kReduction * batch + padded(3 * kPanelOfReduction * n * batch) + padded(batch * (n - 1) * (2 * n - 1));
  const Size applied =
      (kPanel * (kSlack + 1)) * batch + padded(kPanel * n * batch) + padded(batch * (n - 1) * (3 * n - 1));
  return std::max(reduced, applied) + if_large(n, padded(n * batch)) + kStatus + batch * (n * n + 2 * n + 3);
}

// Jacobi: rotations of pairs of blocks of columns; how these are paired, and a flag for each.
Size syevj_elements(Size n) {
  constexpr Size kFirstOfWideBlocks = 4096, kWideBlock = 2048;  // at most; 4000 is not
  if (n >= kFirstOfWideBlocks) {
    const Size blocks = parts(n, kWideBlock);
    return n * n + 2 * kWideBlock * n + 2 * kWideBlock * kWideBlock + 4 * blocks * blocks;
  }
  const Size blocks = parts(n, kTile);
  return kTile * kTile * (blocks + 1) + 4 * blocks * blocks + blocks + n * n + n;
}

Size syevj_batched_elements(Size n, Size batch) {
  const Size blocks = parts(n, kTile);
  return kTile * kTile + 4 * blocks * blocks + batch * (n * n + 2 * n + kTile * kTile * blocks + 1);
}

// The larger of all vectors by way of a QR factorisation and of the direct reduction.
Size gesvd_elements(Size m, Size n) {
  if (m < n) std::swap(m, n);
  if (m == n) return square_gesvd(n);
  const Size direct = kReduction + kSlack + kPanelOfReduction * m + 2 * padded(m * n) + padded(m * n + n * n) +
                      2 * padded(n * n) + padded(m) + 3 * padded(n);
  return std::max(direct, gesvd_job_elements('A', m, n) + padded(m * n));
}

// The larger of the QR factorisation and of the decomposition of its square triangle, beside the triangle.
Size gesvd_job_elements(signed char job, Size m, Size n) {
  if (m < n) std::swap(m, n);
  if (m == n) return square_gesvd(n);
  const Size factored = geqrf_elements(kS, m, n) + padded(n) + kStatus;
  if (job == 'N') {
    const Size applied = kSlack + 32768 + padded(m * std::min(n, kPanel));
    return padded(n * n) + std::max(square_gesvd(n), factored + applied);
  }
  const Size columns = job == 'A' ? m : n;
  return 2 * padded(n * n) + std::max(square_gesvd(n), factored + orgqr_elements(m, columns, n));
}

// Of a matrix that is not square the triangle of its QR factorisation is decomposed; a wide one is transposed first.
Size gesvdj_elements(bool economic, Size m, Size n) {
  if (m < n) return gesvdj_elements(economic, n, m) + padded(m * n);
  if (m == n) {
    const Size blocks = parts(n, kTile), each = kTile * kTile;
    return padded(each * (blocks + 1) + blocks + 4 * blocks * blocks + n) + padded(2 * n * n) + each * blocks;
  }
  Size applied = ormqr_elements(true, m, n, n);
  if (!economic) applied += 2 * kPanelOfReduction * (m - n) + padded(m) - padded(n);
  return std::max(geqrf_elements(kS, m, n) + kStatus, applied) + padded(n);
}

Size gesvdj_batched_elements() {
  return 992;
}

// By way of the Gram matrix and its eigenvectors. All is computed with double precision, so that a matrix of single
// precision takes two elements for each, and room for itself converted.
Size gesvda_elements(Numbers numbers, Size m, Size n, Size batch) {
  constexpr Size kLargestForJacobi = 32;
  const bool single = numbers.real_bytes() == 4;
  Size eigenvalues = n <= kLargestForJacobi ? syevj_batched_elements(n, batch) : syevd_elements(n, batch);
  if (single) eigenvalues = std::max(eigenvalues, padded(batch * m * n, 4));
  const Size matrices =
      numbers.complex ? padded(batch * m * n, 2) + padded(batch * n * n, 2) + 2 * batch * n + padded(batch * n, 4) / 2
                      : padded(batch * m * n, 4) + padded(batch * (n * n + 2 * n), 4) + padded(batch * n, 4);
  return (single ? 2 : 1) * (eigenvalues + matrices);
}

// The larger of the reflectors of the Hessenberg form and of a copy of the matrix, beside vectors.
Size geev_bytes(Numbers numbers, Size n) {
  constexpr Size kPadding = 512;
  const Size vectors = numbers.complex ? 2 * n * numbers.bytes + 3 * n * numbers.real_bytes() : 4 * n * numbers.bytes;
  const Size matrix = std::max(orgqr_elements(n - 1, n - 1, n - 1), n * n);
  return padded(numbers.bytes * (matrix + kStatus) + vectors, kPadding);
}

// The Hessenberg matrix is reduced on the CPU. Approximate, by up to 13 % from n = 24 on: a parabola through the
// answers up to n = 300, above which a square window of three quarters of the rows takes over.
Size geev_host_bytes(Numbers numbers, bool vectors, Size n) {
  constexpr Size kPadding = 512, kLargestInOneBlock = 20;
  const Size window = 9 * n * n / 16;
  Size work = window + 160;
  if (n > kLargestInOneBlock) {
    const Size column = !numbers.complex ? (numbers.bytes == 4 ? 203 : 178) : numbers.bytes == 8 ? 126 : 97;
    const Size fixed = !numbers.complex ? (numbers.bytes == 4 ? 15300 : 11500) : numbers.bytes == 8 ? 5700 : 3700;
    work = std::max(window, 9 * n * n / 50 + column * n + fixed);
  }
  return padded(numbers.bytes * (n * n * (vectors ? 2 : 1) + work), kPadding);
}

}  // namespace xmem::phantom::cusolver
