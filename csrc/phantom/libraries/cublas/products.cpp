// Products of matrices and vectors: kernel launches like all of cuBLAS, written out because what is multiplied decides
// which kernel a GPU would run, which the launch log keeps.
#include <cstdint>

#include "libraries/cublas/problem.hpp"
#include "libraries/handle.hpp"
#include "machine/calls.hpp"
#include "memory/watched.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

// cudaDataType_t
constexpr int kFloat = 0;
constexpr int kDouble = 1;
constexpr int kHalf = 2;
constexpr int kComplexFloat = 4;
constexpr int kComplexDouble = 5;

// `result`: the matrix that is written; null for batches whose matrices are listed in memory of the device.
int multiply(Function function, void* handle, const void* result, Product product) {
  result_is_written(result);
  if (!logs_launches()) {
    computed(handle, function);
    return 0;
  }
  void* stream = nullptr;
  if (handle != nullptr) {
    stream = handle_of(handle).stream;
    product.math_mode = handle_of(handle).math_mode;
  }
  called(function, stream, problem_of(product));
  return 0;
}

}  // namespace

#define PHANTOM_GEMM(name, Size, type)                                                                              \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, Size lda, \
                          const void*, Size ldb, const void*, void* result, Size ldc) {                             \
    note(Function::name);                                                                                           \
    return multiply(Function::name, handle, result,                                                                 \
                    {"gemm", ta, tb, m, n, k, 1, type, type, type, -1, 0, lda, ldb, ldc});                          \
  }
#define PHANTOM_GEMM_BATCHED(name, Size, type)                                                                      \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, Size lda, \
                          const void*, Size ldb, const void*, void*, Size ldc, Size batch) {                        \
    note(Function::name);                                                                                           \
    return multiply(Function::name, handle, nullptr,                                                                \
                    {"gemm", ta, tb, m, n, k, batch, type, type, type, -1, 0, lda, ldb, ldc});                      \
  }
#define PHANTOM_GEMM_STRIDED(name, Size, type)                                                                         \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, Size lda,    \
                          long long, const void*, Size ldb, long long, const void*, void* result, Size ldc, long long, \
                          Size batch) {                                                                                \
    note(Function::name);                                                                                              \
    return multiply(Function::name, handle, result,                                                                    \
                    {"gemm", ta, tb, m, n, k, batch, type, type, type, -1, 0, lda, ldb, ldc});                         \
  }
#define PHANTOM_GEMV(name, Size, type)                                                                                 \
  PHANTOM_EXPORT int name(void* handle, int ta, Size m, Size n, const void*, const void*, Size lda, const void*, Size, \
                          const void*, void* result) {                                                                 \
    note(Function::name);                                                                                              \
    return multiply(Function::name, handle, result,                                                                    \
                    {"gemv", ta, 0, m, n, 1, 1, type, type, type, -1, 0, lda, -1, -1});                                \
  }
#define PHANTOM_PRODUCTS(letter, type)                                            \
  PHANTOM_GEMM(cublas##letter##gemm_v2, int, type)                                \
  PHANTOM_GEMM(cublas##letter##gemm_v2_64, std::int64_t, type)                    \
  PHANTOM_GEMM_BATCHED(cublas##letter##gemmBatched, int, type)                    \
  PHANTOM_GEMM_BATCHED(cublas##letter##gemmBatched_64, std::int64_t, type)        \
  PHANTOM_GEMM_STRIDED(cublas##letter##gemmStridedBatched, int, type)             \
  PHANTOM_GEMM_STRIDED(cublas##letter##gemmStridedBatched_64, std::int64_t, type) \
  PHANTOM_GEMV(cublas##letter##gemv_v2, int, type)                                \
  PHANTOM_GEMV(cublas##letter##gemv_v2_64, std::int64_t, type)
PHANTOM_PRODUCTS(S, kFloat)
PHANTOM_PRODUCTS(D, kDouble)
PHANTOM_PRODUCTS(C, kComplexFloat)
PHANTOM_PRODUCTS(Z, kComplexDouble)
PHANTOM_GEMM(cublasHgemm, int, kHalf)
PHANTOM_GEMM_STRIDED(cublasHgemmStridedBatched, int, kHalf)

#define PHANTOM_GEMM_EX(name, Size)                                                                                 \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, int a,    \
                          Size lda, const void*, int b, Size ldb, const void*, void* result, int c, Size ldc,       \
                          int type, int) {                                                                          \
    note(Function::name);                                                                                           \
    return multiply(Function::name, handle, result, {"gemm", ta, tb, m, n, k, 1, a, b, c, type, 0, lda, ldb, ldc}); \
  }
#define PHANTOM_GEMM_BATCHED_EX(name, Size)                                                                        \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, int a,   \
                          Size lda, const void*, int b, Size ldb, const void*, void*, int c, Size ldc, Size batch, \
                          int type, int) {                                                                         \
    note(Function::name);                                                                                          \
    return multiply(Function::name, handle, nullptr,                                                               \
                    {"gemm", ta, tb, m, n, k, batch, a, b, c, type, 0, lda, ldb, ldc});                            \
  }
#define PHANTOM_GEMM_STRIDED_EX(name, Size)                                                                        \
  PHANTOM_EXPORT int name(void* handle, int ta, int tb, Size m, Size n, Size k, const void*, const void*, int a,   \
                          Size lda, long long, const void*, int b, Size ldb, long long, const void*, void* result, \
                          int c, Size ldc, long long, Size batch, int type, int) {                                 \
    note(Function::name);                                                                                          \
    return multiply(Function::name, handle, result,                                                                \
                    {"gemm", ta, tb, m, n, k, batch, a, b, c, type, 0, lda, ldb, ldc});                            \
  }
PHANTOM_GEMM_EX(cublasGemmEx, int)
PHANTOM_GEMM_EX(cublasGemmEx_64, std::int64_t)
PHANTOM_GEMM_BATCHED_EX(cublasGemmBatchedEx, int)
PHANTOM_GEMM_BATCHED_EX(cublasGemmBatchedEx_64, std::int64_t)
PHANTOM_GEMM_STRIDED_EX(cublasGemmStridedBatchedEx, int)
PHANTOM_GEMM_STRIDED_EX(cublasGemmStridedBatchedEx_64, std::int64_t)
