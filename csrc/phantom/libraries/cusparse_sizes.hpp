// How much work area cuSPARSE's functions ask for, in bytes. Nothing here needs a GPU, nor the phantom's state.
//
// NVIDIA documents none of it. The rules were found in some 20,000 calls, measured on an H200 with CUDA 13.0
// (bench/gpu/results, libraries); they give all of them exactly but for what says "approximate". Sorts and prefix sums
// are CUB's: arrays padded to 256 bytes, and a word for each tile.
#pragma once

#include <cstdint>

namespace xmem::phantom::cusparse {

using Size = std::int64_t;

struct Matrix {
  Size rows = 0;
  Size columns = 0;
  Size nonzeros = 0;
  Size index_bytes = 4;
  Size value_bytes = 4;
};

Size spmv_csr_bytes(const Matrix& a, Size compute_bytes);           // algorithms 0 and CSR_ALG1
Size spmv_csr_balanced_bytes(const Matrix& a, Size compute_bytes);  // CSR_ALG2
Size spmv_coo_bytes(const Matrix& a, Size compute_bytes);           // algorithms 0 and COO_ALG1
Size spmv_coo_balanced_bytes(const Matrix& a, Size compute_bytes);  // COO_ALG2
Size spmm_bytes();
Size sddmm_bytes(const Matrix& c, Size width);
Size sparse_solve_bytes(const Matrix& a, Size width);  // SpSV with a width of 1, and SpSM

// `terms`: products of a nonzero of the one with a nonzero of the other matrix, before those of a cell are added up.
Size spgemm_work_bytes(const Matrix& a);
Size spgemm_compute_bytes(const Matrix& a, Size terms);

Size csr2csc_bytes(const Matrix& a);
Size coo_sort_bytes(Size nonzeros);
Size compressed_sort_bytes(Size nonzeros);  // of rows (CSR) or columns (CSC)

}  // namespace xmem::phantom::cusparse
