#include "libraries/cusparse_sizes.hpp"

#include <algorithm>

namespace xmem::phantom::cusparse {

namespace {

constexpr Size parts(Size count, Size each) {
  return (count + each - 1) / each;
}

constexpr Size padded(Size bytes, Size to = 256) {
  return parts(bytes, to) * to;
}

// CUB's prefix sum: the states of the tiles, with a warp's worth before the first.
constexpr Size states(Size tiles, Size state_bytes = 8) {
  return padded(state_bytes * (tiles + 32));
}

constexpr Size kAlignment = 255;  // what CUB adds to align its first array

// Sums at the borders of tiles: a first and a last row for each tile, then the same for these.
Size border_sums(const Matrix& a, Size compute_bytes, Size tile) {
  constexpr Size kSlack = 508, kSecondTile = 2048;
  const Size tiles = parts(a.nonzeros, tile);
  return 2 * (a.index_bytes + compute_bytes) * (tiles + parts(2 * tiles, kSecondTile)) + kSlack;
}

// In which row each tile begins, and where the last ends.
Size first_rows(const Matrix& a, Size tile) {
  return a.index_bytes * (parts(a.nonzeros, tile) + 1) + a.index_bytes - 1;
}

// Where sums are wider than values, the result's are kept until all are added.
Size wide_result(const Matrix& a, Size compute_bytes) {
  constexpr Size kSlack = 127;
  return compute_bytes * a.rows + kSlack;
}

// CUB's radix sort of 4-byte keys with 4-byte values by the lowest bits, eight a pass: one block sorts few without any
// memory.
Size radix_sort(Size count, Size bits) {
  constexpr Size kOneBlock = 256 * 19, kTile = 384 * 23, kPassBits = 8, kHistogram = 1024, kPairArray = 4;
  if (count <= kOneBlock) return 1;
  const Size passes = std::max<Size>(parts(bits, kPassBits), 1);
  const Size second_arrays = passes > 1 ? 2 * padded(kPairArray * count) : 0;
  return passes * kHistogram + parts(count, kTile) * kHistogram + second_arrays + 256 + kAlignment;
}

}  // namespace

Size spmv_csr_bytes(const Matrix& a, Size compute_bytes) {
  if (a.value_bytes < compute_bytes) {
    return first_rows(a, a.index_bytes == 4 ? 1024 : 896) + wide_result(a, compute_bytes);
  }
  return first_rows(a, a.index_bytes != 4 ? 3072 : a.value_bytes == 4 ? 4096 : 3584);
}

Size spmv_csr_balanced_bytes(const Matrix& a, Size compute_bytes) {
  constexpr Size kTile = 1024;
  return first_rows(a, kTile) + border_sums(a, compute_bytes, kTile);
}

Size spmv_coo_bytes(const Matrix& a, Size compute_bytes) {
  return a.value_bytes < compute_bytes ? wide_result(a, compute_bytes) : spmv_coo_balanced_bytes(a, compute_bytes);
}

Size spmv_coo_balanced_bytes(const Matrix& a, Size compute_bytes) {
  return border_sums(a, compute_bytes, 2048);
}

// No algorithm that was asked about needs any: 0, 1, 2, 3, 4, 6, 12, up to 128 columns.
Size spmm_bytes() {
  return 0;
}

// A dense matrix of indices where a large part of a large product is wanted. Approximate: of all the products that were
// measured only that of 1000 x 128 and 128 x 300, of which a fifth was wanted, needed one.
Size sddmm_bytes(const Matrix& c, Size width) {
  constexpr Size kLeastWidth = 64, kLeastCells = Size{1} << 17, kPartWanted = 10;
  const Size cells = c.rows * c.columns;
  const bool dense = width >= kLeastWidth && cells >= kLeastCells && c.nonzeros * kPartWanted >= cells;
  return dense ? c.index_bytes * cells + c.index_bytes - 1 : 1;
}

// The matrix once more in the order of its rows' levels, what each row waits for, and the right-hand sides.
Size sparse_solve_bytes(const Matrix& a, Size width) {
  constexpr Size kLeastCounts = 1024, kColumnsAtOnce = 32, kFlags = 8;
  const Size i = a.index_bytes, v = a.value_bytes;
  const Size row = 20 + 3 * i + v + v * width + kFlags * parts(width, kColumnsAtOnce);
  return a.nonzeros * (i + v) + a.rows * row + std::max(i * (a.rows + 1), kLeastCounts) + 226 + 3 * i;
}

// How many terms each nonzero has, and their prefix sum.
Size spgemm_work_bytes(const Matrix& a) {
  constexpr Size kCount = 8, kTile = 448, kFixed = 312;
  return (kCount + a.index_bytes) * a.nonzeros + states(parts(a.nonzeros, kTile)) + kFixed + kAlignment;
}

// Row, column and value of each term, in two arrays in turn; and the largest of what sorting and adding them up and
// counting the rows' takes.
Size spgemm_compute_bytes(const Matrix& a, Size terms) {
  const Size i = a.index_bytes, term = 4 * i + 2 * a.value_bytes;
  constexpr Size kLargestInOneBlock = 256;  // rows; somewhere from 100 to 1000
  constexpr Size kLeast = 5159;
  const Size tiles = parts(terms, i == 4 ? 1152 : 1024);
  const Size added = i == 4 ? 3879 + states(tiles, 16) + states(tiles) : 4136 + 24 * tiles;
  const Size counted =
      a.rows > kLargestInOneBlock ? 5647 + padded(8 * a.rows) + states(parts(a.rows, 1152) - 1) : kLeast;
  return std::max(term * terms, term * a.nonzeros + i * (a.rows + 2)) + std::max({kLeast, added, counted});
}

// The larger of counting columns and of sorting by them. Values of 16 bits are moved by a sort of another kind.
Size csr2csc_bytes(const Matrix& a) {
  constexpr Size kFixed = 1024, kTile = 1536, kMergeTile = 1024;
  const Size counted = 535 + kFixed + 4 * a.nonzeros + 8 * a.columns + states(parts(a.columns, kTile));
  Size bits = 0;
  while (a.columns - 1 >= Size{1} << bits) ++bits;
  Size sorted = kFixed + 8 * a.nonzeros + radix_sort(a.nonzeros, bits);
  if (a.value_bytes == 2) sorted += 4 * a.nonzeros + 4 * (parts(a.nonzeros, kMergeTile) + 1);
  return std::max(counted, sorted);
}

// Pairs of indices and their copy, and where the tiles of a merge sort begin.
Size coo_sort_bytes(Size nonzeros) {
  constexpr Size kPair = 8, kTile = 1024, kFixed = 800;
  return padded(kPair * nonzeros + padded(kPair * nonzeros) + 8 * parts(nonzeros, kTile) + kFixed, 128);
}

// Beside that, the index of each nonzero's row or column.
Size compressed_sort_bytes(Size nonzeros) {
  return coo_sort_bytes(nonzeros) + padded(4 * (nonzeros + 1), 128);
}

}  // namespace xmem::phantom::cusparse
