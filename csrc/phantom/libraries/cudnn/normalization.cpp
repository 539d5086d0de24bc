// Batch normalization: its calls, and its workspace and reserve space. The library, asked without a device, wants
// neither (9.1, 9.8, 9.20; NCHW and NHWC, single and half precision, spatial and persistent). On a real device the
// persistent NHWC kernels take a workspace of the order of the per-channel statistics, kilobytes, which is what is
// missing here.
#include <cstddef>
#include <string>

#include "libraries/cudnn/described_graphs.hpp"
#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

int nothing_needed(Function function, const Handle* handle, std::size_t* bytes) {
  note(function);
  if (handle == nullptr || bytes == nullptr) return cudnn::kBadParam;
  *bytes = 0;
  return cudnn::kSuccess;
}

// Work on the handle's stream; `mode` (cudnnBatchNormMode_t) and the sizes of what is normalized say which kernel.
int normalize(Function function, const Handle* handle, int mode, const void* tensor) {
  note(function);
  if (handle == nullptr) return cudnn::kBadParam;
  std::string problem;
  if (logs_launches()) {
    problem = cudnn::problem_of_call("normalization", tensor, "\"mode\":" + std::to_string(mode));
  }
  called(function, handle->stream, problem);
  return cudnn::kSuccess;
}

}  // namespace

// Of what follows the tensor that is normalized, and the factors of result and addend before it, nothing is read.
PHANTOM_EXPORT int cudnnBatchNormalizationForwardInference(const Handle* handle, int mode, const void*, const void*,
                                                           const void* tensor) {
  return normalize(Function::cudnnBatchNormalizationForwardInference, handle, mode, tensor);
}

PHANTOM_EXPORT int cudnnBatchNormalizationForwardTraining(const Handle* handle, int mode, const void*, const void*,
                                                          const void* tensor) {
  return normalize(Function::cudnnBatchNormalizationForwardTraining, handle, mode, tensor);
}

PHANTOM_EXPORT int cudnnBatchNormalizationForwardTrainingEx(const Handle* handle, int mode, int, const void*,
                                                            const void*, const void* tensor) {
  return normalize(Function::cudnnBatchNormalizationForwardTrainingEx, handle, mode, tensor);
}

PHANTOM_EXPORT int cudnnBatchNormalizationBackward(const Handle* handle, int mode, const void*, const void*,
                                                   const void*, const void*, const void* tensor) {
  return normalize(Function::cudnnBatchNormalizationBackward, handle, mode, tensor);
}

PHANTOM_EXPORT int cudnnBatchNormalizationBackwardEx(const Handle* handle, int mode, int, const void*, const void*,
                                                     const void*, const void*, const void* tensor) {
  return normalize(Function::cudnnBatchNormalizationBackwardEx, handle, mode, tensor);
}

PHANTOM_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(const Handle* handle, int, int, void*,
                                                                            void*, void*, void*, void*,
                                                                            std::size_t* bytes) {
  return nothing_needed(Function::cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, handle, bytes);
}

PHANTOM_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(const Handle* handle, int, int, void*, void*,
                                                                     void*, void*, void*, void*, void*,
                                                                     std::size_t* bytes) {
  return nothing_needed(Function::cudnnGetBatchNormalizationBackwardExWorkspaceSize, handle, bytes);
}

PHANTOM_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(const Handle* handle, int, int, void*, void*,
                                                                        std::size_t* bytes) {
  return nothing_needed(Function::cudnnGetBatchNormalizationTrainingExReserveSpaceSize, handle, bytes);
}
