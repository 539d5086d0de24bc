// cuSPARSE. Descriptors of vectors and matrices are the real library's, which needs no GPU for them; here are handles,
// the sizes of buffers, and what comes back to the host.
//
// All sizes are approximate: the real library answers only with a handle, which needs a GPU, and documents them as
// proportional to this or that at best. Each formula below counts what its algorithm must keep.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

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
constexpr std::size_t kIndexBytes = 4;  // the legacy interface has 32-bit indices, the generic one mostly

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

std::int64_t columns_of(const void* dense) {
  using Get = int(const void*, std::int64_t*, std::int64_t*, std::int64_t*, const void**, int*, int*);
  std::int64_t rows = 0, columns = 0, stride = 0;
  const void* values = nullptr;
  int type = 0, order = 0;
  if (auto* get = loaded<Get>(kLibrary, "cusparseConstDnMatGet")) {
    get(dense, &rows, &columns, &stride, &values, &type, &order);
  }
  return columns;
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

// Where the parts of a merge path begin: a pair of indices for each 256 nonzeros.
std::size_t partition_bytes(const SparseSize& size) {
  return static_cast<std::size_t>(size.nonzeros / 256 + 1) * 2 * kIndexBytes;
}

// The order of rows in a triangular solve, and how many others each of them waits for.
std::size_t levels_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(rows + 1) * 3 * kIndexBytes;
}

// Radix sort of pairs: both arrays once more, beside the histograms of the passes.
std::size_t sort_bytes(std::int64_t count) {
  return static_cast<std::size_t>(count) * 2 * kIndexBytes + (std::size_t{64} << 10);
}

int give(std::size_t* answer, std::size_t size) {
  if (answer == nullptr) return kInvalidValue;
  *answer = size;
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
PHANTOM_EXPORT int cusparseSpMV_bufferSize(void*, int, const void*, const void* a, const void*, const void*, void*, int,
                                           int, std::size_t* size) {
  note(Function::cusparseSpMV_bufferSize);
  return give(size, partition_bytes(size_of(a)));
}

PHANTOM_EXPORT int cusparseSpMM_bufferSize(void*, int, int, const void*, const void* a, const void*, const void*, void*,
                                           int, int, std::size_t* size) {
  note(Function::cusparseSpMM_bufferSize);
  return give(size, partition_bytes(size_of(a)));
}

PHANTOM_EXPORT int cusparseSDDMM_bufferSize(void*, int, int, const void*, const void*, const void*, const void*,
                                            void* c, int, int, std::size_t* size) {
  note(Function::cusparseSDDMM_bufferSize);
  return give(size, partition_bytes(size_of(c)));
}

PHANTOM_EXPORT int cusparseSpSV_bufferSize(void*, int, const void*, const void* a, const void*, void*, int, int, void*,
                                           std::size_t* size) {
  note(Function::cusparseSpSV_bufferSize);
  return give(size, levels_bytes(size_of(a).rows));
}

// Beside the order of the rows, the right-hand sides in rows.
PHANTOM_EXPORT int cusparseSpSM_bufferSize(void*, int, int, const void*, const void* a, const void*, void* c, int type,
                                           int, void*, std::size_t* size) {
  note(Function::cusparseSpSM_bufferSize);
  const std::int64_t rows = size_of(a).rows;
  return give(size, levels_bytes(rows) + static_cast<std::size_t>(rows * columns_of(c)) * bytes_of(type));
}

// Called twice: without a buffer for its size, then with it. How many terms each row has.
PHANTOM_EXPORT int cusparseSpGEMM_workEstimation(void* handle, int, int, const void*, const void* a, const void*,
                                                 const void*, void*, int, int, void*, std::size_t* size, void* buffer) {
  note(Function::cusparseSpGEMM_workEstimation);
  if (buffer != nullptr) {
    computed(handle, Function::cusparseSpGEMM_workEstimation);
    return kSuccess;
  }
  return give(size, static_cast<std::size_t>(size_of(a).rows + 1) * 8);
}

// Column and value of every term before those of a cell are summed up (the documentation: the default algorithm needs
// memory for all intermediate products, several times more than the result).
PHANTOM_EXPORT int cusparseSpGEMM_compute(void* handle, int, int, const void*, const void* a, const void* b,
                                          const void*, void* c, int type, int, void*, std::size_t* size, void* buffer) {
  note(Function::cusparseSpGEMM_compute);
  const SparseSize left = size_of(a), right = size_of(b);
  if (buffer == nullptr) {
    const double terms = std::ceil(product_terms(left, right));
    return give(size, static_cast<std::size_t>(terms) * (kIndexBytes + bytes_of(type)) + 256);
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

PHANTOM_EXPORT int cusparseCsr2cscEx2_bufferSize(void*, int, int, int nonzeros, const void*, const int*, const int*,
                                                 void*, int*, int*, int, int, int, int, std::size_t* size) {
  note(Function::cusparseCsr2cscEx2_bufferSize);
  return give(size, sort_bytes(nonzeros));
}

// Sorting of indices.
PHANTOM_EXPORT int cusparseXcoosort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcoosort_bufferSizeExt);
  return give(size, sort_bytes(nonzeros));
}

PHANTOM_EXPORT int cusparseXcsrsort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcsrsort_bufferSizeExt);
  return give(size, sort_bytes(nonzeros));
}

PHANTOM_EXPORT int cusparseXcscsort_bufferSizeExt(void*, int, int, int nonzeros, const int*, const int*,
                                                  std::size_t* size) {
  note(Function::cusparseXcscsort_bufferSizeExt);
  return give(size, sort_bytes(nonzeros));
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
    return give(size, static_cast<std::size_t>(m + 1) * kIndexBytes);                                                  \
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
