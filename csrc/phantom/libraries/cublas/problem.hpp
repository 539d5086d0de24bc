// What a product of matrices is, as the launch log has it: a JSON object.
#pragma once

#include <cstdint>
#include <string>

namespace xmem::phantom {

// A cudaDataType_t, -1 where the caller does not say.
struct Product {
  const char* family;    // "gemm", "gemv"
  int transposed_a = 0;  // cublasOperation_t: 0 no, 1 transposed, 2 conjugated too
  int transposed_b = 0;
  std::int64_t m = -1;
  std::int64_t n = -1;
  std::int64_t k = -1;
  std::int64_t batch = 1;
  int type_a = -1;
  int type_b = -1;
  int type_c = -1;
  int arithmetic = -1;  // cublasComputeType_t or, until CUDA 10, cudaDataType_t
  int math_mode = 0;    // cublasMath_t of the handle
  std::int64_t lda = -1;
  std::int64_t ldb = -1;
  std::int64_t ldc = -1;
  int epilogue = -1;  // cublasLtEpilogue_t
};

std::string problem_of(const Product& product);

}  // namespace xmem::phantom
