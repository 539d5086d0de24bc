// cuDNN's handles, and the functions that only compute: they launch work on the handle's stream and touch no memory
// that the caller did not give them.
#include "libraries/cudnn/handle.hpp"

#include <new>

#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

int compute(Function function, const Handle* handle) {
  note(function);
  if (handle == nullptr) return cudnn::kBadParam;
  called(function, handle->stream);
  return cudnn::kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cudnnCreate(Handle** handle) {
  note(Function::cudnnCreate);
  if (!machine().has(current_device())) return cudnn::kNotInitialized;
  ensure_context(current_device());
  *handle = new (std::nothrow) Handle{current_device(), nullptr};
  return *handle != nullptr ? cudnn::kSuccess : cudnn::kInternalError;
}

PHANTOM_EXPORT int cudnnDestroy(Handle* handle) {
  note(Function::cudnnDestroy);
  delete handle;
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnSetStream(Handle* handle, void* stream) {
  note(Function::cudnnSetStream);
  if (handle == nullptr) return cudnn::kBadParam;
  handle->stream = stream;
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnGetStream(const Handle* handle, void** stream) {
  note(Function::cudnnGetStream);
  if (handle == nullptr) return cudnn::kBadParam;
  *stream = handle->stream;
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnQueryRuntimeError(const Handle* handle, int* status, int, void*) {
  note(Function::cudnnQueryRuntimeError);
  if (handle == nullptr) return cudnn::kBadParam;
  *status = cudnn::kSuccess;
  return cudnn::kSuccess;
}

// All of these have the handle first.
#define COMPUTES(name)                            \
  PHANTOM_EXPORT int name(const Handle* handle) { \
    return compute(Function::name, handle);       \
  }
COMPUTES(cudnnActivationBackward)
COMPUTES(cudnnActivationForward)
COMPUTES(cudnnAddTensor)
COMPUTES(cudnnCTCLoss)
COMPUTES(cudnnCTCLoss_v8)
COMPUTES(cudnnConvolutionBackwardBias)
COMPUTES(cudnnConvolutionBackwardData)
COMPUTES(cudnnConvolutionBackwardFilter)
COMPUTES(cudnnConvolutionBiasActivationForward)
COMPUTES(cudnnConvolutionForward)
COMPUTES(cudnnDivisiveNormalizationBackward)
COMPUTES(cudnnDivisiveNormalizationForward)
COMPUTES(cudnnDropoutBackward)
COMPUTES(cudnnDropoutForward)
COMPUTES(cudnnIm2Col)
COMPUTES(cudnnLRNCrossChannelBackward)
COMPUTES(cudnnLRNCrossChannelForward)
COMPUTES(cudnnNormalizationBackward)
COMPUTES(cudnnNormalizationForwardInference)
COMPUTES(cudnnNormalizationForwardTraining)
COMPUTES(cudnnOpTensor)
COMPUTES(cudnnPoolingBackward)
COMPUTES(cudnnPoolingForward)
COMPUTES(cudnnReduceTensor)
COMPUTES(cudnnReorderFilterAndBias)
COMPUTES(cudnnScaleTensor)
COMPUTES(cudnnSetTensor)
COMPUTES(cudnnSoftmaxBackward)
COMPUTES(cudnnSoftmaxForward)
COMPUTES(cudnnSpatialTfGridGeneratorBackward)
COMPUTES(cudnnSpatialTfGridGeneratorForward)
COMPUTES(cudnnSpatialTfSamplerBackward)
COMPUTES(cudnnSpatialTfSamplerForward)
COMPUTES(cudnnTransformFilter)
COMPUTES(cudnnTransformTensor)
COMPUTES(cudnnTransformTensorEx)
