// cuBLASLt. Descriptors are the real library's, which needs no GPU for them; the choice of an algorithm does.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "abi/device_attribute.hpp"
#include "libraries/cublas/problem.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/watched.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 7;
constexpr char kLibrary[] = "libcublasLt.so";

struct MatmulAlgo {
  std::uint64_t data[8];
};

struct HeuristicResult {
  MatmulAlgo algo;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "cublasLtMatmulHeuristicResult_t");

// What the caller allows an algorithm to take.
std::size_t workspace_limit(void* preference) {
  constexpr int kMaxWorkspaceBytes = 1;
  using GetAttribute = int(void*, int, void*, std::size_t, std::size_t*);
  std::uint64_t limit = 0;
  std::size_t written = 0;
  auto* get = loaded<GetAttribute>(kLibrary, "cublasLtMatmulPreferenceGetAttribute");
  if (preference == nullptr || get == nullptr) return 0;
  return get(preference, kMaxWorkspaceBytes, &limit, sizeof limit, &written) == kSuccess ? limit : 0;
}

// Approximate: what an algorithm takes is the choice of the library's heuristics. Given is what cuBLAS recommends to
// provide (documentation of cublasSetWorkspace: 32 MiB from Hopper on, 4 MiB before), as far as the caller allows it.
// PyTorch allocates its limit whatever the answer, so that its memory does not depend on this.
HeuristicResult approximate_choice(std::size_t limit) {
  const bool hopper_or_newer = machine().device(current_device()).attribute(kComputeCapabilityMajor) >= 9;
  HeuristicResult result{};
  result.workspace_bytes = std::min(limit, std::size_t{hopper_or_newer ? 32U : 4U} << 20);
  result.waves = 1.0F;
  return result;
}

// cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t
constexpr int kArithmetic = 0;
constexpr int kTransposedA = 3;
constexpr int kTransposedB = 4;
constexpr int kEpilogue = 7;
constexpr int kType = 0;
constexpr int kRows = 2;
constexpr int kColumns = 3;
constexpr int kLeadingDimension = 4;
constexpr int kBatch = 5;

template <typename Value>
Value attribute(const char* function, void* descriptor, int which, Value otherwise) {
  using GetAttribute = int(void*, int, void*, std::size_t, std::size_t*);
  auto* get = loaded<GetAttribute>(kLibrary, function);
  Value value{};
  std::size_t written = 0;
  if (descriptor == nullptr || get == nullptr) return otherwise;
  return get(descriptor, which, &value, sizeof value, &written) == kSuccess ? value : otherwise;
}

template <typename Value>
Value of_layout(void* layout, int which, Value otherwise) {
  return attribute("cublasLtMatrixLayoutGetAttribute", layout, which, otherwise);
}

// Of the descriptors of a product and of the layouts of its matrices.
Product read_product(void* matmul, void* a, void* b, void* d) {
  const auto of_matmul = [matmul](int which, int otherwise) {
    return attribute<std::int32_t>("cublasLtMatmulDescGetAttribute", matmul, which, otherwise);
  };
  constexpr std::int64_t kUnknown = -1;
  Product product{"gemm"};
  product.transposed_a = of_matmul(kTransposedA, 0);
  product.transposed_b = of_matmul(kTransposedB, 0);
  product.arithmetic = of_matmul(kArithmetic, -1);
  product.epilogue = of_matmul(kEpilogue, -1);
  product.m = static_cast<std::int64_t>(of_layout<std::uint64_t>(d, kRows, 0));
  product.n = static_cast<std::int64_t>(of_layout<std::uint64_t>(d, kColumns, 0));
  product.k = static_cast<std::int64_t>(of_layout<std::uint64_t>(a, product.transposed_a == 0 ? kColumns : kRows, 0));
  product.batch = of_layout<std::int32_t>(d, kBatch, 1);
  product.type_a = of_layout<std::int32_t>(a, kType, -1);
  product.type_b = of_layout<std::int32_t>(b, kType, -1);
  product.type_c = of_layout<std::int32_t>(d, kType, -1);
  product.lda = of_layout<std::int64_t>(a, kLeadingDimension, kUnknown);
  product.ldb = of_layout<std::int64_t>(b, kLeadingDimension, kUnknown);
  product.ldc = of_layout<std::int64_t>(d, kLeadingDimension, kUnknown);
  return product;
}

}  // namespace

PHANTOM_EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void* preference,
                                                  int requested, HeuristicResult* results, int* returned) {
  note(Function::cublasLtMatmulAlgoGetHeuristic);
  if (requested < 1 || results == nullptr || returned == nullptr) return kInvalidValue;
  results[0] = approximate_choice(workspace_limit(preference));
  *returned = 1;
  return kSuccess;
}

PHANTOM_EXPORT int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int requested, int* ids,
                                            int* returned) {
  note(Function::cublasLtMatmulAlgoGetIds);
  if (requested > 0 && ids != nullptr) ids[0] = 0;
  if (returned != nullptr) *returned = 1;
  return kSuccess;
}

PHANTOM_EXPORT int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int, MatmulAlgo* algo) {
  note(Function::cublasLtMatmulAlgoInit);
  *algo = {};
  return kSuccess;
}

PHANTOM_EXPORT int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const MatmulAlgo* algo,
                                           HeuristicResult* result) {
  note(Function::cublasLtMatmulAlgoCheck);
  const MatmulAlgo chosen = *algo;  // it may lie in the result
  *result = approximate_choice(SIZE_MAX);
  result->algo = chosen;
  return kSuccess;
}

PHANTOM_EXPORT int cublasLtMatmul(void*, void* matmul, const void*, const void*, void* a_layout, const void*,
                                  void* b_layout, const void*, const void*, void*, void* d, void* d_layout, const void*,
                                  void*, std::size_t, void* stream) {
  note(Function::cublasLtMatmul);
  result_is_written(d);
  called(Function::cublasLtMatmul, stream,
         logs_launches() ? problem_of(read_product(matmul, a_layout, b_layout, d_layout)) : std::string());
  return kSuccess;
}

PHANTOM_EXPORT int cublasLtMatrixTransform(void*, void*, const void*, const void*, void*, const void*, const void*,
                                           void*, void* c, void*, void* stream) {
  note(Function::cublasLtMatrixTransform);
  result_is_written(c);
  called(Function::cublasLtMatrixTransform, stream);
  return kSuccess;
}
