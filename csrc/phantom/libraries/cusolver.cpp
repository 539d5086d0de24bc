// cuSOLVER's dense solvers. Factorisations are kernel launches; what matters for memory is what the queries say that a
// workspace takes, for PyTorch allocates it from its pool.
//
// The real library answers the queries only with a handle, which needs a GPU, and documents no sizes. Every answer here
// is approximate: where somebody published a measured size, that one, with its source; otherwise the optimal workspace
// of the LAPACK function of the same name, blocks of kPanel columns, which cuSOLVER's interfaces follow.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "libraries/data_type.hpp"
#include "libraries/handle.hpp"
#include "machine/calls.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

using Size = std::int64_t;  // elements of the matrix's type

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kInvalidValue = 3;

constexpr Size kPanel = 32;  // the block size of LAPACK's ILAENV for QR and Hessenberg and tridiagonal reductions

// A copy of the matrix: cusolverDnCgetrf_bufferSize was measured as 655364512 elements for n = 25600, which is
// n * n + 4512 (github.com/jinleiphys/HPRMAT).
constexpr Size getrf_size(Size m, Size n) {
  return m * n;
}

// LAPACK's potrf needs none; a blocked one on a GPU keeps the panel that it is factoring.
constexpr Size potrf_size(Size n) {
  return n * kPanel;
}

constexpr Size geqrf_size(Size n) {
  return n * kPanel;
}

// Of the reflectors of a QR factorisation that are applied to a matrix from the left (0) or the right (1).
constexpr Size ormqr_size(int side, Size m, Size n) {
  return (side == 0 ? n : m) * kPanel;
}

// LAPACK asks for 2 n^2 + 6 n + 1 with eigenvectors. cuSOLVER takes more: its 32-bit sizes end at n of about 25000
// (github.com/NVIDIA/CUDALibrarySamples issue 246), which is 3 n^2 and not 2 n^2.
constexpr Size syevd_size(bool vectors, Size n) {
  return vectors ? 3 * n * n + 6 * n + 1 : (kPanel + 2) * n;
}

// Batched Jacobi of matrices up to 32 x 32, elements: exactly what github.com/cupy/cupy issue 7261 measured with
// cusolverDnCheevjBatched_bufferSize (4 x 4: 2077, 3126, 5224 for 1, 2, 4 matrices; 2 x 2: 1033 for each more).
constexpr Size syevj_batched_size(Size n, Size batch) {
  return 1028 + batch * (n * n + 2 * n + 1025);
}

// Small matrices as above; larger ones, of which PyTorch gives this function single ones too, as syevd has it.
constexpr Size syev_batched_size(bool vectors, Size n, Size batch) {
  constexpr Size kLargestForJacobi = 32;
  return n <= kLargestForJacobi ? syevj_batched_size(n, batch) : batch * syevd_size(vectors, n);
}

// The matrix and the rotations.
constexpr Size syevj_size(Size n) {
  return 2 * n * n;
}

// LAPACK's, the larger of its alternatives for all jobs: the bidiagonal reduction in blocks beside a triangle.
constexpr Size gesvd_size(Size m, Size n) {
  const Size k = std::min(m, n);
  return k * k + 3 * k + (m + n) * kPanel;
}

// A copy of the matrix and of both factors.
constexpr Size gesvdj_size(Size m, Size n) {
  const Size k = std::min(m, n);
  return m * n + (m + n) * k;
}

// The same for each of the matrices, as syevj has it.
constexpr Size gesvdj_batched_size(Size m, Size n, Size batch) {
  return 1028 + batch * (m * n + m + n + 1025);
}

// By way of the Gram matrix and its eigenvectors, and a copy of the matrix.
constexpr Size gesvda_size(Size m, Size n, Size batch) {
  return batch * (m * n + 2 * n * n);
}

// 32 bits are what these functions can say.
int give(int* answer, Size elements) {
  if (elements < 0 || elements > std::numeric_limits<int>::max()) return kInvalidValue;
  *answer = static_cast<int>(std::max<Size>(elements, 1));
  return kSuccess;
}

int give_bytes(std::size_t* device, std::size_t* host, Size elements, int type, Size host_elements = 0) {
  if (elements < 0) return kInvalidValue;
  *device = static_cast<std::size_t>(elements) * bytes_of(type);
  *host = static_cast<std::size_t>(host_elements) * bytes_of(type);
  return kSuccess;
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
  PHANTOM_EXPORT int cusolverDn##letter##potrf_bufferSize(void*, int, int n, void*, int, int* size) {                 \
    note(Function::cusolverDn##letter##potrf_bufferSize);                                                             \
    return give(size, potrf_size(n));                                                                                 \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##potri_bufferSize(void*, int, int n, void*, int, int* size) {                 \
    note(Function::cusolverDn##letter##potri_bufferSize);                                                             \
    return give(size, potrf_size(n));                                                                                 \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##getrf_bufferSize(void*, int m, int n, void*, int, int* size) {               \
    note(Function::cusolverDn##letter##getrf_bufferSize);                                                             \
    return give(size, getrf_size(m, n));                                                                              \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##geqrf_bufferSize(void*, int, int n, void*, int, int* size) {                 \
    note(Function::cusolverDn##letter##geqrf_bufferSize);                                                             \
    return give(size, geqrf_size(n));                                                                                 \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##sytrf_bufferSize(void*, int n, void*, int, int* size) {                      \
    note(Function::cusolverDn##letter##sytrf_bufferSize);                                                             \
    return give(size, potrf_size(n));                                                                                 \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvd_bufferSize(void*, int m, int n, int* size) {                           \
    note(Function::cusolverDn##letter##gesvd_bufferSize);                                                             \
    return give(size, gesvd_size(m, n));                                                                              \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdj_bufferSize(void*, int, int, int m, int n, void*, int, void*, void*,   \
                                                           int, void*, int, int* size, void*) {                       \
    note(Function::cusolverDn##letter##gesvdj_bufferSize);                                                            \
    return give(size, gesvdj_size(m, n));                                                                             \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdjBatched_bufferSize(void*, int, int m, int n, void*, int, void*, void*, \
                                                                  int, void*, int, int* size, void*, int batch) {     \
    note(Function::cusolverDn##letter##gesvdjBatched_bufferSize);                                                     \
    return give(size, gesvdj_batched_size(m, n, batch));                                                              \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gesvdaStridedBatched_bufferSize(                                             \
      void*, int, int, int m, int n, void*, int, long long, void*, long long, void*, int, long long, void*, int,      \
      long long, int* size, int batch) {                                                                              \
    note(Function::cusolverDn##letter##gesvdaStridedBatched_bufferSize);                                              \
    return give(size, gesvda_size(m, n, batch));                                                                      \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##letter##gebrd_bufferSize(void*, int m, int n, int* size) {                           \
    note(Function::cusolverDn##letter##gebrd_bufferSize);                                                             \
    return give(size, (Size{m} + n) * kPanel);                                                                        \
  }
PHANTOM_FOR_ALL(PHANTOM_SIZES)

#define PHANTOM_ORTHOGONAL(generate, apply)                                                                            \
  PHANTOM_EXPORT int cusolverDn##generate##_bufferSize(void*, int, int n, int, void*, int, void*, int* size) {         \
    note(Function::cusolverDn##generate##_bufferSize);                                                                 \
    return give(size, geqrf_size(n));                                                                                  \
  }                                                                                                                    \
  PHANTOM_EXPORT int cusolverDn##apply##_bufferSize(void*, int side, int, int m, int n, int, void*, int, void*, void*, \
                                                    int, int* size) {                                                  \
    note(Function::cusolverDn##apply##_bufferSize);                                                                    \
    return give(size, ormqr_size(side, m, n));                                                                         \
  }
PHANTOM_ORTHOGONAL(Sorgqr, Sormqr)
PHANTOM_ORTHOGONAL(Dorgqr, Dormqr)
PHANTOM_ORTHOGONAL(Cungqr, Cunmqr)
PHANTOM_ORTHOGONAL(Zungqr, Zunmqr)

#define PHANTOM_EIGENVALUES(kind)                                                                                     \
  PHANTOM_EXPORT int cusolverDn##kind##evd_bufferSize(void*, int vectors, int, int n, void*, int, void*, int* size) { \
    note(Function::cusolverDn##kind##evd_bufferSize);                                                                 \
    return give(size, syevd_size(vectors != 0, n));                                                                   \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##kind##evj_bufferSize(void*, int, int, int n, void*, int, void*, int* size, void*) {  \
    note(Function::cusolverDn##kind##evj_bufferSize);                                                                 \
    return give(size, syevj_size(n));                                                                                 \
  }                                                                                                                   \
  PHANTOM_EXPORT int cusolverDn##kind##evjBatched_bufferSize(void*, int, int, int n, void*, int, void*, int* size,    \
                                                             void*, int batch) {                                      \
    note(Function::cusolverDn##kind##evjBatched_bufferSize);                                                          \
    return give(size, syevj_batched_size(n, batch));                                                                  \
  }
PHANTOM_EIGENVALUES(Ssy)
PHANTOM_EIGENVALUES(Dsy)
PHANTOM_EIGENVALUES(Che)
PHANTOM_EIGENVALUES(Zhe)

// The interface of 64 bits, in bytes.
PHANTOM_EXPORT int cusolverDnXpotrf_bufferSize(void*, void*, int, Size n, int type, const void*, Size, int,
                                               std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXpotrf_bufferSize);
  return give_bytes(device, host, potrf_size(n), type);
}

PHANTOM_EXPORT int cusolverDnXgeqrf_bufferSize(void*, void*, Size, Size n, int type, const void*, Size, int,
                                               const void*, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgeqrf_bufferSize);
  return give_bytes(device, host, geqrf_size(n), type);
}

PHANTOM_EXPORT int cusolverDnXgetrf_bufferSize(void*, void*, Size m, Size n, int type, const void*, Size, int,
                                               std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgetrf_bufferSize);
  return give_bytes(device, host, getrf_size(m, n), type);
}

PHANTOM_EXPORT int cusolverDnXsytrs_bufferSize(void*, int, Size n, Size columns, int type, const void*, Size,
                                               const Size*, int, void*, Size, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXsytrs_bufferSize);
  return give_bytes(device, host, n * columns, type);  // the permuted right-hand sides
}

PHANTOM_EXPORT int cusolverDnXsyevd_bufferSize(void*, void*, int vectors, int, Size n, int type, const void*, Size, int,
                                               const void*, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXsyevd_bufferSize);
  return give_bytes(device, host, syevd_size(vectors != 0, n), type);
}

PHANTOM_EXPORT int cusolverDnXsyevBatched_bufferSize(void*, void*, int vectors, int, Size n, int type, const void*,
                                                     Size, int, const void*, int, std::size_t* device,
                                                     std::size_t* host, Size batch) {
  note(Function::cusolverDnXsyevBatched_bufferSize);
  return give_bytes(device, host, syev_batched_size(vectors != 0, n, batch), type);
}

PHANTOM_EXPORT int cusolverDnXgesvd_bufferSize(void*, void*, signed char, signed char, Size m, Size n, int type,
                                               const void*, Size, int, const void*, int, const void*, Size, int,
                                               const void*, Size, int, std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgesvd_bufferSize);
  return give_bytes(device, host, gesvd_size(m, n), type);
}

// Half of it runs on the CPU: the Hessenberg matrix is reduced there.
PHANTOM_EXPORT int cusolverDnXgeev_bufferSize(void*, void*, int, int, Size n, int type, const void*, Size, int,
                                              const void*, int, const void*, Size, int, const void*, Size, int,
                                              std::size_t* device, std::size_t* host) {
  note(Function::cusolverDnXgeev_bufferSize);
  return give_bytes(device, host, n * n + n * kPanel, type, n * n + 4 * n);
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
