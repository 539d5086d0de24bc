// Batch normalization's workspace and reserve space. The library, asked without a device, wants neither
// (9.1, 9.8, 9.20; NCHW and NHWC, single and half precision, spatial and persistent). On a real device the persistent
// NHWC kernels take a workspace of the order of the per-channel statistics, kilobytes, which is what is missing here.
#include <cstddef>

#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

int nothing_needed(Function function, const Handle* handle, std::size_t* bytes) {
  note(function);
  if (handle == nullptr || bytes == nullptr) return cudnn::kBadParam;
  *bytes = 0;
  return cudnn::kSuccess;
}

}  // namespace

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
