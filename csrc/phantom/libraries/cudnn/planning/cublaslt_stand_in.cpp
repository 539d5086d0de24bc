// Stands in for cuBLASLt in the helper process. The engines of cuDNN that compute a pointwise convolution as a product
// of matrices ask it for an algorithm while they are planned, and without an answer cuDNN leaves them out of its list,
// though it ranks them first for most such convolutions in NCHW. The real cuBLASLt answers on a device only.
//
// What it knows of an algorithm is its workspace, from an H100 (torch 2.11.0, cuBLAS 13.1): 144 bytes for kernels that
// load 16 bytes at once, which rows of such a length allow, if it may have any; none for the others. cuDNN adds 256.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#define STAND_IN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 7;

constexpr std::size_t kAlgorithmBytes = 144;
constexpr std::int64_t kLoadedAtOnce = 16;

// cublasLtMatrixLayoutAttribute_t and cublasLtMatmulPreferenceAttributes_t
constexpr int kLeadingDimension = 4;
constexpr int kMostWorkspace = 1;

// Descriptors, no larger than the caller's room for them.
struct Layout {
  std::int64_t type;
  std::int64_t leading_dimension;
};
struct Preference {
  std::uint64_t most_workspace;
};
constexpr std::size_t kDescriptorBytes = 256;  // of those that are made here

struct Algorithm {
  std::uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "cublasLtMatmulHeuristicResult_t");

int make(void** descriptor) {
  *descriptor = std::calloc(1, kDescriptorBytes);
  return kSuccess;
}

int destroy(void* descriptor) {
  std::free(descriptor);
  return kSuccess;
}

int clear(void* descriptor, std::size_t bytes) {
  std::memset(descriptor, 0, bytes);
  return kSuccess;
}

// Nothing of these is looked at again.
int read_nothing(void* value, std::size_t bytes, std::size_t* written) {
  if (value != nullptr) std::memset(value, 0, bytes);
  if (written != nullptr) *written = bytes;
  return kSuccess;
}

// Of an element, of cudaDataType_t.
std::int64_t bytes_of(std::int64_t type) {
  constexpr std::int64_t kSingle = 0, kDouble = 1, kHalf = 2, kBfloat16 = 14;
  switch (type) {
    case kDouble:
      return 8;
    case kSingle:
      return 4;
    case kHalf:
    case kBfloat16:
      return 2;
    default:
      return 1;
  }
}

bool loads_at_once(const void* layout) {
  const auto* const matrix = static_cast<const Layout*>(layout);
  return matrix->leading_dimension * bytes_of(matrix->type) % kLoadedAtOnce == 0;
}

}  // namespace

STAND_IN_EXPORT int cublasLtCreate(void** handle) {
  return make(handle);
}

STAND_IN_EXPORT int cublasLtDestroy(void* handle) {
  return destroy(handle);
}

STAND_IN_EXPORT std::size_t cublasLtGetVersion() {
  return std::size_t{CUDA_MAJOR} * 10000;
}

STAND_IN_EXPORT int cublasLtGetProperty(int which, int* value) {
  *value = which == 0 ? CUDA_MAJOR : 0;  // major, minor, patch
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void* a, void* b, void* c, void* d, void* preference,
                                                   int requested, HeuristicResult* results, int* returned) {
  if (requested < 1 || results == nullptr || returned == nullptr) return kInvalidValue;
  bool at_once = true;
  for (const void* layout : {a, b, c, d}) at_once = at_once && (layout == nullptr || loads_at_once(layout));
  const std::uint64_t most = preference == nullptr ? 0 : static_cast<Preference*>(preference)->most_workspace;
  results[0] = {};
  results[0].workspace_bytes = at_once && most >= kAlgorithmBytes ? kAlgorithmBytes : 0;
  results[0].waves = 1.0F;
  *returned = 1;
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatrixLayoutInit_internal(void* layout, std::size_t bytes, int type, std::uint64_t,
                                                      std::uint64_t, std::int64_t leading_dimension) {
  if (bytes < sizeof(Layout)) return kInvalidValue;
  clear(layout, bytes);
  *static_cast<Layout*>(layout) = {type, leading_dimension};
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatrixLayoutCreate(void** layout, int type, std::uint64_t rows, std::uint64_t columns,
                                               std::int64_t leading_dimension) {
  make(layout);
  return cublasLtMatrixLayoutInit_internal(*layout, kDescriptorBytes, type, rows, columns, leading_dimension);
}

STAND_IN_EXPORT int cublasLtMatrixLayoutDestroy(void* layout) {
  return destroy(layout);
}

STAND_IN_EXPORT int cublasLtMatrixLayoutSetAttribute(void* layout, int which, const void* value, std::size_t bytes) {
  auto& leading_dimension = static_cast<Layout*>(layout)->leading_dimension;
  if (which == kLeadingDimension && bytes == sizeof leading_dimension) std::memcpy(&leading_dimension, value, bytes);
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatrixLayoutGetAttribute(void*, int, void* value, std::size_t bytes, std::size_t* written) {
  return read_nothing(value, bytes, written);
}

STAND_IN_EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
  return make(preference);
}

STAND_IN_EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) {
  return destroy(preference);
}

STAND_IN_EXPORT int cublasLtMatmulPreferenceInit_internal(void* preference, std::size_t bytes) {
  return clear(preference, bytes);
}

STAND_IN_EXPORT int cublasLtMatmulPreferenceSetAttribute(void* preference, int which, const void* value,
                                                         std::size_t bytes) {
  auto& most = static_cast<Preference*>(preference)->most_workspace;
  if (which == kMostWorkspace && bytes == sizeof most) std::memcpy(&most, value, bytes);
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatmulDescCreate(void** product, int, int) {
  return make(product);
}

STAND_IN_EXPORT int cublasLtMatmulDescInit_internal(void* product, std::size_t bytes, int, int) {
  return clear(product, bytes);
}

STAND_IN_EXPORT int cublasLtMatmulDescDestroy(void* product) {
  return destroy(product);
}

STAND_IN_EXPORT int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) {
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatmulDescGetAttribute(void*, int, void* value, std::size_t bytes, std::size_t* written) {
  return read_nothing(value, bytes, written);
}

STAND_IN_EXPORT int cublasLtMatrixTransformDescCreate(void** transform, int) {
  return make(transform);
}

STAND_IN_EXPORT int cublasLtMatrixTransformDescInit_internal(void* transform, std::size_t bytes, int) {
  return clear(transform, bytes);
}

STAND_IN_EXPORT int cublasLtMatrixTransformDescDestroy(void* transform) {
  return destroy(transform);
}

STAND_IN_EXPORT int cublasLtMatrixTransformDescSetAttribute(void*, int, const void*, std::size_t) {
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatrixTransformDescGetAttribute(void*, int, void* value, std::size_t bytes,
                                                            std::size_t* written) {
  return read_nothing(value, bytes, written);
}

// Nothing runs here.
STAND_IN_EXPORT int cublasLtMatmul() {
  return kSuccess;
}

STAND_IN_EXPORT int cublasLtMatrixTransform() {
  return kSuccess;
}
