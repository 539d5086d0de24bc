// cuSPARSELt: products with matrices of which two in four values are kept. Its objects lie in memory of the caller, 512
// bytes or more each; here only the descriptors of matrices have something in them.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libraries/data_type.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr int kSuccess = 0;
constexpr int kNotInitialized = 1;

struct MatrixDescriptor {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t bytes_of_value;
};

struct MatmulDescriptor {
  MatrixDescriptor structured;
};

int describe(void* descriptor, std::int64_t rows, std::int64_t columns, int type) {
  const MatrixDescriptor described{rows, columns, static_cast<std::int64_t>(bytes_of(type))};
  std::memcpy(descriptor, &described, sizeof described);
  return kSuccess;
}

// Half of the values, and two bits for the place of each of them in its four: 9/16 of a matrix of 16-bit values and
// 10/16 of one of 8-bit values, as PyTorch's own constants have it.
int compressed(const void* descriptor, std::size_t* size, std::size_t* buffer) {
  MatrixDescriptor matrix{};
  std::memcpy(&matrix, descriptor, sizeof matrix);
  const std::int64_t values = matrix.rows * matrix.columns;
  *size = static_cast<std::size_t>(values * matrix.bytes_of_value / 2 + values / 8);
  if (buffer != nullptr) *buffer = 0;
  return kSuccess;
}

int launch(Function function, void* const* streams, std::int32_t count) {
  called(function, streams != nullptr && count > 0 ? streams[0] : nullptr);
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cusparseLtInit(void* handle) {
  note(Function::cusparseLtInit);
  if (handle == nullptr || !machine().has(current_device())) return kNotInitialized;
  ensure_context(current_device());
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtDenseDescriptorInit(const void*, void* descriptor, std::int64_t rows, std::int64_t columns,
                                                 std::int64_t, std::uint32_t, int type, int) {
  note(Function::cusparseLtDenseDescriptorInit);
  return describe(descriptor, rows, columns, type);
}

PHANTOM_EXPORT int cusparseLtStructuredDescriptorInit(const void*, void* descriptor, std::int64_t rows,
                                                      std::int64_t columns, std::int64_t, std::uint32_t, int type, int,
                                                      int) {
  note(Function::cusparseLtStructuredDescriptorInit);
  return describe(descriptor, rows, columns, type);
}

// The structured matrix is the first one unless the caller took the second; both have the sizes that matter.
PHANTOM_EXPORT int cusparseLtMatmulDescriptorInit(const void*, void* matmul, int, int, const void* a, const void*,
                                                  const void*, const void*, int) {
  note(Function::cusparseLtMatmulDescriptorInit);
  std::memcpy(matmul, a, sizeof(MatmulDescriptor));
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtMatmulPlanInit(const void*, void* plan, const void* matmul, const void*) {
  note(Function::cusparseLtMatmulPlanInit);
  std::memcpy(plan, matmul, sizeof(MatmulDescriptor));
  return kSuccess;
}

// Approximate: algorithms that split the inner dimension take a workspace, the default does not.
PHANTOM_EXPORT int cusparseLtMatmulGetWorkspace(const void*, const void*, std::size_t* size) {
  note(Function::cusparseLtMatmulGetWorkspace);
  *size = 0;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtMatmulAlgGetAttribute(const void*, const void*, int, void* value, std::size_t size) {
  note(Function::cusparseLtMatmulAlgGetAttribute);
  std::memset(value, 0, size);
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtSpMMACompressedSize(const void*, const void* plan, std::size_t* size,
                                                 std::size_t* buffer) {
  note(Function::cusparseLtSpMMACompressedSize);
  return compressed(plan, size, buffer);
}

PHANTOM_EXPORT int cusparseLtSpMMACompressedSize2(const void*, const void* descriptor, std::size_t* size,
                                                  std::size_t* buffer) {
  note(Function::cusparseLtSpMMACompressedSize2);
  return compressed(descriptor, size, buffer);
}

PHANTOM_EXPORT int cusparseLtSpMMACompress(const void*, const void*, const void*, void*, void*, void* stream) {
  note(Function::cusparseLtSpMMACompress);
  called(Function::cusparseLtSpMMACompress, stream);
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtSpMMACompress2(const void*, const void*, int, int, const void*, void*, void*,
                                            void* stream) {
  note(Function::cusparseLtSpMMACompress2);
  called(Function::cusparseLtSpMMACompress2, stream);
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtSpMMAPrune(const void*, const void*, const void*, void*, int, void* stream) {
  note(Function::cusparseLtSpMMAPrune);
  called(Function::cusparseLtSpMMAPrune, stream);
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtSpMMAPrune2(const void*, const void*, int, int, const void*, void*, int, void* stream) {
  note(Function::cusparseLtSpMMAPrune2);
  called(Function::cusparseLtSpMMAPrune2, stream);
  return kSuccess;
}

// Zero says that the matrix is pruned as it must be.
PHANTOM_EXPORT int cusparseLtSpMMAPruneCheck(const void*, const void*, const void*, int* valid, void* stream) {
  note(Function::cusparseLtSpMMAPruneCheck);
  called(Function::cusparseLtSpMMAPruneCheck, stream);
  if (device_of(valid) < 0) *valid = 0;
  return kSuccess;
}

PHANTOM_EXPORT int cusparseLtMatmul(const void*, const void*, const void*, const void*, const void*, const void*,
                                    const void*, void*, void*, void** streams, std::int32_t count) {
  note(Function::cusparseLtMatmul);
  return launch(Function::cusparseLtMatmul, streams, count);
}

PHANTOM_EXPORT int cusparseLtMatmulSearch(const void*, void*, const void*, const void*, const void*, const void*,
                                          const void*, void*, void*, void** streams, std::int32_t count) {
  note(Function::cusparseLtMatmulSearch);
  return launch(Function::cusparseLtMatmulSearch, streams, count);
}
