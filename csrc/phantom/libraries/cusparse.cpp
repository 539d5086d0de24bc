// cuSPARSE. Descriptors of vectors and matrices are the real library's, which needs no GPU for them; here are handles,
// the sizes of buffers, and what comes back to the host.
//
// The real library answers the queries only with a handle, which needs a GPU; cusparse_sizes.hpp has what it answers.
// Approximate is what depends on the matrices' contents, and the functions of triangular blocks and of sums, of which
// nobody measured the sizes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "libraries/cusparse_sizes.hpp"
#include "libraries/data_type.hpp"
#include "libraries/handle.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "memory/address_space.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kInvalidValue = 3;
constexpr char kLibrary[] = "libcusparse.so";
constexpr int kNotSupported = 10;
constexpr std::size_t kIndexBytes = 4;             // the legacy interface has 32-bit indices
constexpr int kFloat = 0, kBfloat16 = 14;          // cudaDataType
constexpr int kCoo = 3;                            // cusparseFormat_t
constexpr int kBalancedCsr = 3, kBalancedCoo = 4;  // cusparseSpMVAlg_t: CSR_ALG2, COO_ALG2

struct SparseSize {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t nonzeros = 0;

  double density() const {
    const double cells = static_cast<double>(rows) * static_cast<double>(columns);
    return cells > 0 ? std::min(static_cast<double>(nonzeros) / cells, 1.0) : 0.0;
  }
};

// How many nonzeros a product has is only known to a GPU; told about a descriptor once it was computed.
struct Products {
  std::mutex mutex;
  std::map<const void*, std::int64_t> nonzeros;
};

Products& products() {
  static auto* kept = new Products();
  return *kept;
}

SparseSize size_of(const void* matrix) {
  SparseSize size;
  using GetSize = int(const void*, std::int64_t*, std::int64_t*, std::int64_t*);
  if (auto* get = loaded<GetSize>(kLibrary, "cusparseSpMatGetSize")) {
    get(matrix, &size.rows, &size.columns, &size.nonzeros);
  }
  return size;
}

struct Described {
  cusparse::Matrix matrix;
  int format = 0;
  int type = kFloat;
};

Described described(const void* matrix) {
  using Get = int(const void*, int*);
  using GetCompressed = int(const void*, std::int64_t*, std::int64_t*, std::int64_t*, const void**, const void**,
                            const void**, int*, int*, int*, int*);
  using GetCoo = int(const void*, std::int64_t*, std::int64_t*, std::int64_t*, const void**, const void**, const void**,
                     int*, int*, int*);
  constexpr int kCsc = 2, kIndex64 = 3;
  const SparseSize size = size_of(matrix);
  Described found;
  int index = 0, other_index = 0, base = 0;
  std::int64_t rows = 0, columns = 0, nonzeros = 0;
  const void *first = nullptr, *second = nullptr, *values = nullptr;
  if (auto* get = loaded<Get>(kLibrary, "cusparseSpMatGetFormat")) get(matrix, &found.format);
  if (found.format == kCoo) {
    if (auto* get = loaded<GetCoo>(kLibrary, "cusparseConstCooGet")) {
      get(matrix, &rows, &columns, &nonzeros, &first, &second, &values, &index, &base, &found.type);
    }
  } else if (auto* get = loaded<GetCompressed>(kLibrary,
                                               found.format == kCsc ? "cusparseConstCscGet" : "cusparseConstCsrGet")) {
    get(matrix, &rows, &columns, &nonzeros, &first, &second, &values, &index, &other_index, &base, &found.type);
  }
  found.matrix = {size.rows, size.columns, size.nonzeros, index == kIndex64 ? 8 : 4,
                  static_cast<std::int64_t>(bytes_of(found.type))};
  return found;
}

std::int64_t columns_of(const void* dense, bool transposed = false) {
  using Get = int(const void*, std::int64_t*, std::int64_t*, std::int64_t*, const void**, int*, int*);
  std::int64_t rows = 0, columns = 0, stride = 0;
  const void* values = nullptr;
  int type = 0, order = 0;
  if (auto* get = loaded<Get>(kLibrary, "cusparseConstDnMatGet")) {
    get(dense, &rows, &columns, &stride, &values, &type, &order);
  }
  return transposed ? rows : columns;
}

// Products of two nonzeros when these lie at random: each of A meets as many of B as a row of B has on average.
double product_terms(const SparseSize& a, const SparseSize& b) {
  return b.rows == 0 ? 0.0
                     : static_cast<double>(a.nonzeros) * static_cast<double>(b.nonzeros) / static_cast<double>(b.rows);
}

// Nonzeros of the product of matrices whose nonzeros lie at random.
std::int64_t product_nonzeros(const SparseSize& a, const SparseSize& b) {
  const double met = a.density() * b.density();
  const double density = 1.0 - std::pow(1.0 - met, static_cast<double>(a.columns));
  return static_cast<std::int64_t>(std::ceil(density * static_cast<double>(a.rows) * static_cast<double>(b.columns)));
}

// The order of rows in a triangular solve, and how many others each of them waits for.
std::size_t levels_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(rows + 1) * 3 * kIndexBytes;
}

int give(std::size_t* answer, std::int64_t size) {
  if (answer == nullptr) return kInvalidValue;
  *answer = static_cast<std::size_t>(size);
  return kSuccess;
}

int give_int(int* answer, std::size_t size) {
  if (answer == nullptr) return kInvalidValue;
  *answer = static_cast<int>(size);
  return kSuccess;
}

// No pivot was zero.
int no_zero_pivot(int* position) {
  if (position != nullptr && device_of(position) < 0) *position = -1;
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cusparseGetVersion(void*, int* version) {
  note(Function::cusparseGetVersion);
  const LibraryVersion loaded = loaded_version(kLibrary, "cusparseGetProperty");
  *version = loaded.major * 1000 + loaded.minor * 100 + loaded.patch;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseSetStream(void* handle, void* stream) {
  note(Function::cusparseSetStream);
  if (handle == nullptr) return kNotInitialized;
  handle_of(handle).stream = stream;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseGetStream(void* handle, void** stream) {
  note(Function::cusparseGetStream);
  if (handle == nullptr) return kNotInitialized;
  *stream = handle_of(handle).stream;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseSetPointerMode(void* handle, int mode) {
  note(Function::cusparseSetPointerMode);
  if (handle == nullptr) return kNotInitialized;
  handle_of(handle).pointer_mode = mode;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseGetPointerMode(void* handle, int* mode) {
  note(Function::cusparseGetPointerMode);
  if (handle == nullptr) return kNotInitialized;
  *mode = handle_of(handle).pointer_mode;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseSpMatGetSize(const void* matrix, std::int64_t* rows, std::int64_t* columns,
                                        std::int64_t* nonzeros) {
  note(Function::cusparseSpMatGetSize);
  const SparseSize size = size_of(matrix);
  *rows = size.rows;
  *columns = size.columns;
  *nonzeros = size.nonzeros;
  Products& kept = products();
  const std::lock_guard lock(kept.mutex);
  if (const auto found = kept.nonzeros.find(matrix); found != kept.nonzeros.end()) *nonzeros = found->second;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseDestroySpMat(const void* matrix) {
  note(Function::cusparseDestroySpMat);
  {
    Products& kept = products();
    const std::lock_guard lock(kept.mutex);
    kept.nonzeros.erase(matrix);
  }
  auto* destroy = loaded<int(const void*)>(kLibrary, "cusparseDestroySpMat");
  return destroy == nullptr ? kNotInitialized : destroy(matrix);
}

// The generic interface.
PHANTOM_EXPORT int cusparseSpMV_bufferSize(void*, int, const void*, const void* a, const void*, const void*, void*,
                                           int type, int algorithm, std::size_t* size) {
  note(Function::cusparseSpMV_bufferSize);
  const auto [matrix, format, values] = described(a);
  const auto computed_bytes = static_cast<std::int64_t>(bytes_of(type));
  if (format == kCoo) {
    return give(size, algorithm == kBalancedCoo ? cusparse::spmv_coo_balanced_bytes(matrix, computed_bytes)
                                                : cusparse::spmv_coo_bytes(matrix, computed_bytes));
  }
  return give(size, algorithm == kBalancedCsr ? cusparse::spmv_csr_balanced_bytes(matrix, computed_bytes)
                                              : cusparse::spmv_csr_bytes(matrix, computed_bytes));
}

PHANTOM_EXPORT int cusparseSpMM_bufferSize(void*, int, int, const void*, const void*, const void*, const void*, void*,
                                           int, int, std::size_t* size) {
  note(Function::cusparseSpMM_bufferSize);
  return give(size, cusparse::spmm_bytes());
}

PHANTOM_EXPORT int cusparseSDDMM_bufferSize(void*, int transposed, int, const void*, const void* a, const void*,
                                            const void*, void* c, int type, int, std::size_t* size) {
  note(Function::cusparseSDDMM_bufferSize);
  const Described wanted = described(c);
  if (wanted.type == kBfloat16 && type == kFloat) return kNotSupported;
  return give(size, cusparse::sddmm_bytes(wanted.matrix, columns_of(a, transposed != 0)));
}

PHANTOM_EXPORT int cusparseSpSV_bufferSize(void*, int, const void*, const void* a, const void*, void*, int, int, void*,
                                           std::size_t* size) {
  note(Function::cusparseSpSV_bufferSize);
  const Described triangle = described(a);
  if (triangle.type == kBfloat16) return kNotSupported;
  return give(size, cusparse::sparse_solve_bytes(triangle.matrix, 1));
}

PHANTOM_EXPORT int cusparseSpSM_bufferSize(void*, int, int, const void*, const void* a, const void*, void* c, int, int,
                                           void*, std::size_t* size) {
  note(Function::cusparseSpSM_bufferSize);
  const Described triangle = described(a);
  if (triangle.type == kBfloat16) return kNotSupported;
  return give(size, cusparse::sparse_solve_bytes(triangle.matrix, columns_of(c)));
}

// Called twice: without a buffer for its size, then with it.
PHANTOM_EXPORT int cusparseSpGEMM_workEstimation(void* handle, int, int, const void*, const void* a, const void*,
                                                 const void*, void*, int type, int, void*, std::size_t* size,
                                                 void* buffer) {
  note(Function::cusparseSpGEMM_workEstimation);
  if (buffer != nullptr) {
    computed(handle, Function::cusparseSpGEMM_workEstimation);
    return kSuccess;
  }
  const Described left = described(a);
  if (left.type == kBfloat16 && type == kFloat) return kNotSupported;
  return give(size, cusparse::spgemm_work_bytes(left.matrix));
}

// How many terms there are only a GPU knows; approximate unless all rows have the same number of nonzeros.
PHANTOM_EXPORT int cusparseSpGEMM_compute(void* handle, int, int, const void*, const void* a, const void* b,
                                          const void*, void* c, int, int, void*, std::size_t* size, void* buffer) {
  note(Function::cusparseSpGEMM_compute);
  const SparseSize left = size_of(a), right = size_of(b);
  if (buffer == nullptr) {
    const auto terms = static_cast<std::int64_t>(std::ceil(product_terms(left, right)));
    return give(size, cusparse::spgemm_compute_bytes(described(a).matrix, terms));
  }
  computed(handle, Function::cusparseSpGEMM_compute);
  Products& kept = products();
  const std::lock_guard lock(kept.mutex);
  kept.nonzeros[c] = product_nonzeros(left, right);
  return kSuccess;
}

PHANTOM_EXPORT int cusparseSparseToDense_bufferSize(void*, const void*, void*, int, std::size_t* size) {
  note(Function::cusparseSparseToDense_bufferSize);
  return give(size, 0);
}

PHANTOM_EXPORT int cusparseCsr2cscEx2_bufferSize(void*, int rows, int columns, int nonzeros, const void*, const int*,
                                                 const int*, void*, int*, int*, int type, int, int, int,
                                                 std::size_t* size) {
  note(Function::cusparseCsr2cscEx2_bufferSize);
  return give(size, cusparse::csr2csc_bytes({rows, columns, nonzeros, static_cast<std::int64_t>(kIndexBytes),
                                             static_cast<std::int64_t>(bytes_of(type))}));
}

// Sorting of indices.
PHANTOM_EXPORT int cusparseXcoosort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcoosort_bufferSizeExt);
  return give(size, cusparse::coo_sort_bytes(nonzeros));
}

PHANTOM_EXPORT int cusparseXcsrsort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcsrsort_bufferSizeExt);
  return give(size, cusparse::compressed_sort_bytes(nonzeros));
}

PHANTOM_EXPORT int cusparseXcscsort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcscsort_bufferSizeExt);
  return give(size, cusparse::compressed_sort_bytes(nonzeros));
}

// Sums of sparse matrices: approximate, for only a GPU knows how many nonzeros meet; here none do.
PHANTOM_EXPORT int cusparseXcsrgeam2Nnz(void* handle, int m, int n, const void*, int nonzeros_a, const int*, const int*,
                                        const void*, int nonzeros_b, const int*, const int*, const void*, int*,
                                        int* nonzeros, void*) {
  note(Function::cusparseXcsrgeam2Nnz);
  computed(handle, Function::cusparseXcsrgeam2Nnz);
  if (nonzeros == nullptr) return kInvalidValue;
  const std::int64_t most = std::int64_t{m} * n;
  if (device_of(nonzeros) < 0) *nonzeros = static_cast<int>(std::min(most, std::int64_t{nonzeros_a} + nonzeros_b));
  return kSuccess;
}

PHANTOM_EXPORT int cusparseXbsrsv2_zeroPivot(void*, void*, int* position) {
  note(Function::cusparseXbsrsv2_zeroPivot);
  return no_zero_pivot(position);
}

PHANTOM_EXPORT int cusparseXbsrsm2_zeroPivot(void*, void*, int* position) {
  note(Function::cusparseXbsrsm2_zeroPivot);
  return no_zero_pivot(position);
}

#define PHANTOM_TYPED(letter)                                                                                          \
  PHANTOM_EXPORT int cusparse##letter##csrgeam2_bufferSizeExt(                                                         \
      void*, int m, int, const void*, const void*, int, const void*, const int*, const int*, const void*, const void*, \
      int, const void*, const int*, const int*, const void*, const void*, const int*, const int*, std::size_t* size) { \
    note(Function::cusparse##letter##csrgeam2_bufferSizeExt);                                                          \
    return give(size, (std::int64_t{m} + 1) * static_cast<std::int64_t>(kIndexBytes));                                 \
  }                                                                                                                    \
  PHANTOM_EXPORT int cusparse##letter##bsrsv2_bufferSize(void*, int, int, int rows, int, const void*, void*,           \
                                                         const int*, const int*, int, void*, int* size) {              \
    note(Function::cusparse##letter##bsrsv2_bufferSize);                                                               \
    return give_int(size, levels_bytes(rows));                                                                         \
  }                                                                                                                    \
  PHANTOM_EXPORT int cusparse##letter##bsrsm2_bufferSize(void*, int, int, int, int rows, int, int, const void*, void*, \
                                                         const int*, const int*, int, void*, int* size) {              \
    note(Function::cusparse##letter##bsrsm2_bufferSize);                                                               \
    return give_int(size, levels_bytes(rows));                                                                         \
  }
PHANTOM_TYPED(S)
PHANTOM_TYPED(D)
PHANTOM_TYPED(C)
PHANTOM_TYPED(Z)
