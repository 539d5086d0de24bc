// cuBLAS. All matrices live on the device, so a computation is a kernel launch; what is left are the settings of a
// handle, copies, and the few results that come back in memory of the host.
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "libraries/data_type.hpp"
#include "libraries/handle.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "memory/address_space.hpp"
#include "memory/contents.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;
constexpr int kInvalidValue = 7;

// The largest of zeros is the first of them, counted from one.
template <typename Index>
int first_index(Function function, void* handle, Index* result) {
  computed(handle, function);
  if (result != nullptr && device_of(result) < 0) *result = 1;
  return kSuccess;
}

int zero_result(Function function, void* handle, void* result, std::size_t size) {
  computed(handle, function);
  give_zeros(result, size);
  return kSuccess;
}

int zero_info(Function function, void* handle, int* info) {
  computed(handle, function);
  if (info == nullptr) return kInvalidValue;
  *info = 0;
  return kSuccess;
}

// Columns of `rows` elements between matrices with different distances of their columns.
int copy_matrix(std::int64_t rows, std::int64_t columns, std::int64_t element, const void* source,
                std::int64_t source_stride, void* target, std::int64_t target_stride) {
  if (rows < 0 || columns < 0 || element <= 0 || source_stride <= 0 || target_stride <= 0) return kInvalidValue;
  if (source_stride == rows && target_stride == rows) {
    copy(target, source, static_cast<std::size_t>(rows * columns * element));
    return kSuccess;
  }
  for (std::int64_t column = 0; column < columns; ++column) {
    copy(static_cast<char*>(target) + column * target_stride * element,
         static_cast<const char*>(source) + column * source_stride * element, static_cast<std::size_t>(rows * element));
  }
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cublasCreate_v2(void** handle) {
  note(Function::cublasCreate_v2);
  return create_handle(handle) ? kSuccess : kNotInitialized;
}

PHANTOM_EXPORT int cublasDestroy_v2(void* handle) {
  note(Function::cublasDestroy_v2);
  if (handle == nullptr) return kNotInitialized;
  destroy_handle(handle);
  return kSuccess;
}

PHANTOM_EXPORT int cublasGetVersion_v2(void*, int* version) {
  note(Function::cublasGetVersion_v2);
  const LibraryVersion loaded = loaded_version("libcublas.so", "cublasGetProperty");
  *version = loaded.major * 10000 + loaded.minor * 100 + loaded.patch;
  return kSuccess;
}

PHANTOM_EXPORT int cublasSetStream_v2(void* handle, void* stream) {
  note(Function::cublasSetStream_v2);
  if (handle == nullptr) return kNotInitialized;
  Handle& kept = handle_of(handle);
  kept.stream = stream;
  kept.workspace = nullptr;  // as documented: back to the pool of the library
  kept.workspace_bytes = 0;
  return kSuccess;
}

PHANTOM_EXPORT int cublasGetStream_v2(void* handle, void** stream) {
  note(Function::cublasGetStream_v2);
  if (handle == nullptr) return kNotInitialized;
  *stream = handle_of(handle).stream;
  return kSuccess;
}

PHANTOM_EXPORT int cublasSetWorkspace_v2(void* handle, void* workspace, std::size_t size) {
  note(Function::cublasSetWorkspace_v2);
  if (handle == nullptr) return kNotInitialized;
  handle_of(handle).workspace = workspace;
  handle_of(handle).workspace_bytes = size;
  return kSuccess;
}

#define PHANTOM_SETTING(set, get, field)             \
  PHANTOM_EXPORT int set(void* handle, int value) {  \
    note(Function::set);                             \
    if (handle == nullptr) return kNotInitialized;   \
    handle_of(handle).field = value;                 \
    return kSuccess;                                 \
  }                                                  \
  PHANTOM_EXPORT int get(void* handle, int* value) { \
    note(Function::get);                             \
    if (handle == nullptr) return kNotInitialized;   \
    *value = handle_of(handle).field;                \
    return kSuccess;                                 \
  }
PHANTOM_SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, pointer_mode)
PHANTOM_SETTING(cublasSetMathMode, cublasGetMathMode, math_mode)
PHANTOM_SETTING(cublasSetAtomicsMode, cublasGetAtomicsMode, atomics_mode)
PHANTOM_SETTING(cublasSetSmCountTarget, cublasGetSmCountTarget, sm_count_target)
PHANTOM_SETTING(cublasSetEmulationStrategy, cublasGetEmulationStrategy, emulation_strategy)

// Results that are one number.
#define PHANTOM_OF_ONE(name, Size, size)                                         \
  PHANTOM_EXPORT int name(void* handle, Size, const void*, Size, void* result) { \
    note(Function::name);                                                        \
    return zero_result(Function::name, handle, result, size);                    \
  }
#define PHANTOM_OF_TWO(name, Size, size)                                                            \
  PHANTOM_EXPORT int name(void* handle, Size, const void*, Size, const void*, Size, void* result) { \
    note(Function::name);                                                                           \
    return zero_result(Function::name, handle, result, size);                                       \
  }
#define PHANTOM_OF_ONE_BOTH(name, size) \
  PHANTOM_OF_ONE(name##_v2, int, size)  \
  PHANTOM_OF_ONE(name##_v2_64, std::int64_t, size)
#define PHANTOM_OF_TWO_BOTH(name, size) \
  PHANTOM_OF_TWO(name##_v2, int, size)  \
  PHANTOM_OF_TWO(name##_v2_64, std::int64_t, size)
PHANTOM_OF_ONE_BOTH(cublasSasum, 4)
PHANTOM_OF_ONE_BOTH(cublasDasum, 8)
PHANTOM_OF_ONE_BOTH(cublasScasum, 4)
PHANTOM_OF_ONE_BOTH(cublasDzasum, 8)
PHANTOM_OF_ONE_BOTH(cublasSnrm2, 4)
PHANTOM_OF_ONE_BOTH(cublasDnrm2, 8)
PHANTOM_OF_ONE_BOTH(cublasScnrm2, 4)
PHANTOM_OF_ONE_BOTH(cublasDznrm2, 8)
PHANTOM_OF_TWO_BOTH(cublasSdot, 4)
PHANTOM_OF_TWO_BOTH(cublasDdot, 8)
PHANTOM_OF_TWO_BOTH(cublasCdotu, 8)
PHANTOM_OF_TWO_BOTH(cublasCdotc, 8)
PHANTOM_OF_TWO_BOTH(cublasZdotu, 16)
PHANTOM_OF_TWO_BOTH(cublasZdotc, 16)

#define PHANTOM_OF_ONE_EX(name, Size)                                                                \
  PHANTOM_EXPORT int name(void* handle, Size, const void*, int, Size, void* result, int type, int) { \
    note(Function::name);                                                                            \
    return zero_result(Function::name, handle, result, bytes_of(type));                              \
  }
#define PHANTOM_OF_TWO_EX(name, Size)                                                                                 \
  PHANTOM_EXPORT int name(void* handle, Size, const void*, int, Size, const void*, int, Size, void* result, int type, \
                          int) {                                                                                      \
    note(Function::name);                                                                                             \
    return zero_result(Function::name, handle, result, bytes_of(type));                                               \
  }
PHANTOM_OF_ONE_EX(cublasAsumEx, int)
PHANTOM_OF_ONE_EX(cublasAsumEx_64, std::int64_t)
PHANTOM_OF_ONE_EX(cublasNrm2Ex, int)
PHANTOM_OF_ONE_EX(cublasNrm2Ex_64, std::int64_t)
PHANTOM_OF_TWO_EX(cublasDotEx, int)
PHANTOM_OF_TWO_EX(cublasDotEx_64, std::int64_t)
PHANTOM_OF_TWO_EX(cublasDotcEx, int)
PHANTOM_OF_TWO_EX(cublasDotcEx_64, std::int64_t)

#define PHANTOM_INDEX(name, Index)                                                  \
  PHANTOM_EXPORT int name(void* handle, Index, const void*, Index, Index* result) { \
    note(Function::name);                                                           \
    return first_index(Function::name, handle, result);                             \
  }
#define PHANTOM_INDEX_EX(name, Index)                                                    \
  PHANTOM_EXPORT int name(void* handle, Index, const void*, int, Index, Index* result) { \
    note(Function::name);                                                                \
    return first_index(Function::name, handle, result);                                  \
  }
#define PHANTOM_INDEX_BOTH(name) \
  PHANTOM_INDEX(name##_v2, int)  \
  PHANTOM_INDEX(name##_v2_64, std::int64_t)
PHANTOM_INDEX_BOTH(cublasIsamax)
PHANTOM_INDEX_BOTH(cublasIdamax)
PHANTOM_INDEX_BOTH(cublasIcamax)
PHANTOM_INDEX_BOTH(cublasIzamax)
PHANTOM_INDEX_BOTH(cublasIsamin)
PHANTOM_INDEX_BOTH(cublasIdamin)
PHANTOM_INDEX_BOTH(cublasIcamin)
PHANTOM_INDEX_BOTH(cublasIzamin)
PHANTOM_INDEX_EX(cublasIamaxEx, int)
PHANTOM_INDEX_EX(cublasIamaxEx_64, std::int64_t)
PHANTOM_INDEX_EX(cublasIaminEx, int)
PHANTOM_INDEX_EX(cublasIaminEx_64, std::int64_t)

// Batched factorisations say in memory of the host whether their arguments were good.
#define PHANTOM_FACTORISATIONS(letter)                                                                                \
  PHANTOM_EXPORT int cublas##letter##geqrfBatched(void* handle, int, int, void*, int, void*, int* info, int) {        \
    note(Function::cublas##letter##geqrfBatched);                                                                     \
    return zero_info(Function::cublas##letter##geqrfBatched, handle, info);                                           \
  }                                                                                                                   \
  PHANTOM_EXPORT int cublas##letter##gelsBatched(void* handle, int, int, int, int, void*, int, void*, int, int* info, \
                                                 int*, int) {                                                         \
    note(Function::cublas##letter##gelsBatched);                                                                      \
    return zero_info(Function::cublas##letter##gelsBatched, handle, info);                                            \
  }                                                                                                                   \
  PHANTOM_EXPORT int cublas##letter##getrsBatched(void* handle, int, int, int, const void*, int, const int*, void*,   \
                                                  int, int* info, int) {                                              \
    note(Function::cublas##letter##getrsBatched);                                                                     \
    return zero_info(Function::cublas##letter##getrsBatched, handle, info);                                           \
  }
PHANTOM_FACTORISATIONS(S)
PHANTOM_FACTORISATIONS(D)
PHANTOM_FACTORISATIONS(C)
PHANTOM_FACTORISATIONS(Z)

// Copies between host and device; a vector is a matrix of one row.
#define PHANTOM_COPIES(direction, suffix, Size)                                                                     \
  PHANTOM_EXPORT int cublas##direction##Vector##suffix(Size n, Size element, const void* x, Size x_stride, void* y, \
                                                       Size y_stride) {                                             \
    note(Function::cublas##direction##Vector##suffix);                                                              \
    return copy_matrix(1, n, element, x, x_stride, y, y_stride);                                                    \
  }                                                                                                                 \
  PHANTOM_EXPORT int cublas##direction##VectorAsync##suffix(Size n, Size element, const void* x, Size x_stride,     \
                                                            void* y, Size y_stride, void*) {                        \
    note(Function::cublas##direction##VectorAsync##suffix);                                                         \
    return copy_matrix(1, n, element, x, x_stride, y, y_stride);                                                    \
  }                                                                                                                 \
  PHANTOM_EXPORT int cublas##direction##Matrix##suffix(Size rows, Size columns, Size element, const void* a,        \
                                                       Size a_stride, void* b, Size b_stride) {                     \
    note(Function::cublas##direction##Matrix##suffix);                                                              \
    return copy_matrix(rows, columns, element, a, a_stride, b, b_stride);                                           \
  }                                                                                                                 \
  PHANTOM_EXPORT int cublas##direction##MatrixAsync##suffix(Size rows, Size columns, Size element, const void* a,   \
                                                            Size a_stride, void* b, Size b_stride, void*) {         \
    note(Function::cublas##direction##MatrixAsync##suffix);                                                         \
    return copy_matrix(rows, columns, element, a, a_stride, b, b_stride);                                           \
  }
PHANTOM_COPIES(Set, , int)
PHANTOM_COPIES(Get, , int)
PHANTOM_COPIES(Set, _64, std::int64_t)
PHANTOM_COPIES(Get, _64, std::int64_t)
