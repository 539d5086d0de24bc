// cuSOLVER's dense solvers. Factorisations are kernel launches; what matters for memory is what the queries say that a
// workspace takes, for PyTorch allocates it from its pool.
//
// The real library answers the queries only with a handle, which needs a GPU; cusolver_sizes.hpp has what it answers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "libraries/cusolver_sizes.hpp"
#include "libraries/handle.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

using namespace cusolver;

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kInvalidValue = 3;

// Of the current device; none without a GPU.
Size multiprocessors() {
  const int device = current_device();
  return machine().has(device) ? machine().device(device).attribute(kMultiProcessorCount) : 0;
}

// The rules are those of CUDA 13. Before, a copy of the matrix was taken: cusolverDnCgetrf_bufferSize was measured as
// 655364512 elements for n = 25600, which is n * n + 4512 (github.com/jinleiphys/HPRMAT). Which release ended that is
// not known: all of CUDA 12 are taken to do it.
Size lu_bytes(Numbers numbers, Size m, Size n) {
  const Size bytes = getrf_bytes(numbers, m, n, multiprocessors());
  const bool copies = loaded_version("libcusolver.so", "cusolverGetProperty").major < 12;
  return copies ? std::max(bytes, m * n * numbers.bytes) : bytes;
}

// Not measured: the block size of LAPACK's ILAENV for bidiagonal reductions.
constexpr Size gebrd_elements(Size m, Size n) {
  constexpr Size kPanel = 32;
  return (m + n) * kPanel;
}

// 32 bits are what these functions can say.
int give(int* answer, Size elements) {
  if (elements < 0 || elements > std::numeric_limits<int>::max()) return kInvalidValue;
  *answer = static_cast<int>(std::max<Size>(elements, 1));
  return kSuccess;
}

int give_bytes(std::size_t* device, std::size_t* host, Size device_bytes, Size host_bytes = 0) {
  *device = static_cast<std::size_t>(device_bytes);
  *host = static_cast<std::size_t>(host_bytes);
  return kSuccess;
}

// What functions of 64 bits answer where those of 32 bits answer with elements.
int give_elements(std::size_t* device, std::size_t* host, Size elements, int type) {
  return give_bytes(device, host, elements * numbers_of(type).bytes + kHeaderBytes);
}

// Sizes of matrices.
template <typename... Sizes>
bool valid(Sizes... sizes) {
  return ((sizes >= 0) && ...);
}

}  // namespace

PHANTOM_EXPORT int cusolverDnSetStream(void* handle, void* stream) {
  note(Function::cusolverDnSetStream);
  if (handle == nullptr) return kNotInitialized;
  handle_of(handle).stream = stream;
  return kSuccess;
}

PHANTOM_EXPORT int cusolverDnGetStream(void* handle, void** stream) {
  note(Function::cusolverDnGetStream);
  if (handle == nullptr) return kNotInitialized;
  *stream = handle_of(handle).stream;
  return kSuccess;
}

// Of all four types; functions of real matrices are named sy and or, those of complex ones he and un.
#define PHANTOM_FOR_ALL(define) define(S) define(D) define(C) define(Z)

#define PHANTOM_SIZES(letter)                                                                                         \
  PHANTOM_EXPORT int cusolverDn##letter##potrf_bufferSize(void*, int upper, int n, void*, int, int* size) {           \
    note(Function::cusolverDn##letter##potrf_bufferSize);                                                             \
    if (!valid(n)) return kInvalidValue;                                                                              \
    return give(size, potrf_bytes(upper != 0, n) / k##letter.bytes);                                                  \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##potri_bufferSize(void*, int, int n, void*, int, int* size) {                 \
    note(Function::cusolverDn##letter##potri_bufferSize);                                                             \
    if (!valid(n)) return kInvalidValue;                                                                              \
    return give(size, potri_elements());                                                                              \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##getrf_bufferSize(void*, int m, int n, void*, int, int* size) {               \
    note(Function::cusolverDn##letter##getrf_bufferSize);                                                             \
    if (!valid(m, n)) return kInvalidValue;                                                                           \
    return give(size, (lu_bytes(k##letter, m, n) + kHeaderBytes) / k##letter.bytes);                                  \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##geqrf_bufferSize(void*, int m, int n, void*, int, int* size) {               \
    note(Function::cusolverDn##letter##geqrf_bufferSize);                                                             \
    if (!valid(m, n)) return kInvalidValue;                                                                           \
    return give(size, geqrf_elements(k##letter, m, n));                                                               \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##sytrf_bufferSize(void*, int n, void*, int, int* size) {                      \
    note(Function::cusolverDn##letter##sytrf_bufferSize);                                                             \
    if (!valid(n)) return kInvalidValue;                                                                              \
    return give(size, sytrf_elements(k##letter, n));                                                                  \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvd_bufferSize(void*, int m, int n, int* size) {                           \
    note(Function::cusolverDn##letter##gesvd_bufferSize);                                                             \
    if (!valid(m, n)) return kInvalidValue;                                                                           \
    return give(size, gesvd_elements(m, n));                                                                          \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdj_bufferSize(void*, int, int economic, int m, int n, void*, int, void*, \
                                                           void*, int, void*, int, int* size, void*) {                \
    note(Function::cusolverDn##letter##gesvdj_bufferSize);                                                            \
    if (!valid(m, n)) return kInvalidValue;                                                                           \
    return give(size, gesvdj_elements(economic != 0, m, n));                                                          \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdjBatched_bufferSize(void*, int, int m, int n, void*, int, void*, void*, \
                                                                  int, void*, int, int* size, void*, int batch) {     \
    note(Function::cusolverDn##letter##gesvdjBatched_bufferSize);                                                     \
    if (!valid(m, n, batch)) return kInvalidValue;                                                                    \
    return give(size, gesvdj_batched_elements());                                                                     \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdaStridedBatched_bufferSize(                                             \
      void*, int, int, int m, int n, void*, int, long long, void*, long long, void*, int, long long, void*, int,      \
      long long, int* size, int batch) {                                                                              \
    note(Function::cusolverDn##letter##gesvdaStridedBatched_bufferSize);                                              \
    if (!valid(m, n, batch)) return kInvalidValue;                                                                    \
    return give(size, gesvda_elements(k##letter, m, n, batch));                                                       \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gebrd_bufferSize(void*, int m, int n, int* size) {                           \
    note(Function::cusolverDn##letter##gebrd_bufferSize);                                                             \
    if (!valid(m, n)) return kInvalidValue;                                                                           \
    return give(size, gebrd_elements(m, n));                                                                          \
  }
PHANTOM_FOR_ALL(PHANTOM_SIZES)

#define PHANTOM_ORTHOGONAL(generate, apply)                                                                        \
  PHANTOM_EXPORT int cusolverDn##generate##_bufferSize(void*, int m, int n, int k, void*, int, void*, int* size) { \
    note(Function::cusolverDn##generate##_bufferSize);                                                             \
    if (!valid(m, n, k)) return kInvalidValue;                                                                     \
    return give(size, orgqr_elements(m, n, k));                                                                    \
  }                                                                                                                \
  PHANTOM_EXPORT int cusolverDn##apply##_bufferSize(void*, int side, int, int m, int n, int k, void*, int, void*,  \
                                                    void*, int, int* size) {                                       \
    note(Function::cusolverDn##apply##_bufferSize);                                                                \
    if (!valid(m, n, k)) return kInvalidValue;                                                                     \
    return give(size, ormqr_elements(side == 0, m, n, k));                                                         \
  }
PHANTOM_ORTHOGONAL(Sorgqr, Sormqr)
PHANTOM_ORTHOGONAL(Dorgqr, Dormqr)
PHANTOM_ORTHOGONAL(Cungqr, Cunmqr)
PHANTOM_ORTHOGONAL(Zungqr, Zunmqr)

#define PHANTOM_EIGENVALUES(kind)                                                                                    \
  PHANTOM_EXPORT int cusolverDn##kind##evd_bufferSize(void*, int, int, int n, void*, int, void*, int* size) {        \
    note(Function::cusolverDn##kind##evd_bufferSize);                                                                \
    if (!valid(n)) return kInvalidValue;                                                                             \
    return give(size, syevd_elements(n));                                                                            \
  }                                                                                                                  \
  PHANTOM_EXPORT int cusolverDn##kind##evj_bufferSize(void*, int, int, int n, void*, int, void*, int* size, void*) { \
    note(Function::cusolverDn##kind##evj_bufferSize);                                                                \
    if (!valid(n)) return kInvalidValue;                                                                             \
    return give(size, syevj_elements(n));                                                                            \
  }                                                                                                                  \
  PHANTOM_EXPORT int cusolverDn##kind##evjBatched_bufferSize(void*, int, int, int n, void*, int, void*, int* size,   \
                                                             void*, int batch) {                                     \
    note(Function::cusolverDn##kind##evjBatched_bufferSize);                                                         \
    if (!valid(n, batch)) return kInvalidValue;                                                                      \
    return give(size, syevj_batched_elements(n, batch));                                                             \
  }
PHANTOM_EIGENVALUES(Ssy)
PHANTOM_EIGENVALUES(Dsy)
PHANTOM_EIGENVALUES(Che)
PHANTOM_EIGENVALUES(Zhe)

// The interface of 64 bits, in bytes.
PHANTOM_EXPORT int cusolverDnXpotrf_bufferSize(void*, void*, int upper, Size n, int, const void*, Size, int,
                                               std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXpotrf_bufferSize);
  if (!valid(n)) return kInvalidValue;
  return give_bytes(device, host, potrf_bytes(upper != 0, n));
}

PHANTOM_EXPORT int cusolverDnXgeqrf_bufferSize(void*, void*, Size m, Size n, int type, const void*, Size, int,
                                               const void*, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgeqrf_bufferSize);
  if (!valid(m, n)) return kInvalidValue;
  return give_elements(device, host, geqrf_elements(numbers_of(type), m, n), type);
}

PHANTOM_EXPORT int cusolverDnXgetrf_bufferSize(void*, void*, Size m, Size n, int type, const void*, Size, int,
                                               std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgetrf_bufferSize);
  if (!valid(m, n)) return kInvalidValue;
  return give_bytes(device, host, lu_bytes(numbers_of(type), m, n));
}

PHANTOM_EXPORT int cusolverDnXsytrs_bufferSize(void*, int, Size n, Size columns, int, const void*, Size, const Size*,
                                               int, void*, Size, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXsytrs_bufferSize);
  if (!valid(n, columns)) return kInvalidValue;
  return give_bytes(device, host, 0);
}

PHANTOM_EXPORT int cusolverDnXsyevd_bufferSize(void*, void*, int, int, Size n, int type, const void*, Size, int,
                                               const void*, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXsyevd_bufferSize);
  if (!valid(n)) return kInvalidValue;
  return give_elements(device, host, syevd_elements(n), type);
}

PHANTOM_EXPORT int cusolverDnXsyevBatched_bufferSize(void*, void*, int, int, Size n, int type, const void*, Size, int,
                                                     const void*, int, std::size_t* device, std::size_t* host,
                                                     Size batch) {
  note(Function::cusolverDnXsyevBatched_bufferSize);
  if (!valid(n, batch)) return kInvalidValue;
  return give_elements(device, host, syevd_elements(n, batch), type);
}

PHANTOM_EXPORT int cusolverDnXgesvd_bufferSize(void*, void*, signed char job, signed char, Size m, Size n, int type,
                                               const void*, Size, int, const void*, int, const void*, Size, int,
                                               const void*, Size, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgesvd_bufferSize);
  if (!valid(m, n)) return kInvalidValue;
  return give_elements(device, host, gesvd_job_elements(job, m, n), type);
}

PHANTOM_EXPORT int cusolverDnXgeev_bufferSize(void*, void*, int left, int right, Size n, int type, const void*, Size,
                                              int, const void*, int, const void*, Size, int, const void*, Size, int,
                                              std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgeev_bufferSize);
  if (!valid(n)) return kInvalidValue;
  const Numbers numbers = numbers_of(type);
  return give_bytes(device, host, geev_bytes(numbers, n), geev_host_bytes(numbers, left != 0 || right != 0, n));
}

// What iterations say of themselves: converged at once.
#define PHANTOM_ITERATION(kind)                                                       \
  PHANTOM_EXPORT int cusolverDnX##kind##GetResidual(void*, void*, double* residual) { \
    note(Function::cusolverDnX##kind##GetResidual);                                   \
    *residual = 0;                                                                    \
    return kSuccess;                                                                  \
  }                                                                                   \
  PHANTOM_EXPORT int cusolverDnX##kind##GetSweeps(void*, void*, int* sweeps) {        \
    note(Function::cusolverDnX##kind##GetSweeps);                                     \
    *sweeps = 1;                                                                      \
    return kSuccess;                                                                  \
  }
PHANTOM_ITERATION(gesvdj)
PHANTOM_ITERATION(syevj)
