// CTC loss. Its workspace is an estimate: the library does not say it without a device. What the algorithm must keep is
// taken: the normalized probabilities, and for each time step the forward and backward variables of the labels with a
// blank around each (Graves et al., 2006), in single precision.
#include <algorithm>
#include <cstddef>

#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/library.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

constexpr int kLongestLabel = 256;  // cuDNN takes no longer ones

// The probabilities are [time, batch, alphabet].
int estimate(const void* probabilities, int longest_label, std::size_t* bytes) {
  using GetTensor = int (*)(const void*, int, int*, int*, int*, int*);
  const auto get = reinterpret_cast<GetTensor>(cudnn::library_function("cudnnGetTensorNdDescriptor"));
  int type = 0, dimensions = 0, sizes[8] = {}, strides[8] = {};
  if (get == nullptr || get(probabilities, 8, &type, &dimensions, sizes, strides) != 0) return cudnn::kBadParam;
  const auto steps = static_cast<std::size_t>(sizes[0]) * static_cast<std::size_t>(sizes[1]);
  const auto states = 2 * (2 * static_cast<std::size_t>(longest_label) + 1);
  *bytes = sizeof(float) * steps * (static_cast<std::size_t>(sizes[2]) + states);
  return cudnn::kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cudnnGetCTCLossWorkspaceSize(const Handle* handle, const void* probabilities, const void*,
                                                const int*, const int* label_lengths, const int*, int, void*,
                                                std::size_t* bytes) {
  note(Function::cudnnGetCTCLossWorkspaceSize);
  if (handle == nullptr || bytes == nullptr || label_lengths == nullptr) return cudnn::kBadParam;
  using GetTensor = int (*)(const void*, int, int*, int*, int*, int*);
  const auto get = reinterpret_cast<GetTensor>(cudnn::library_function("cudnnGetTensorNdDescriptor"));
  int type = 0, dimensions = 0, sizes[8] = {}, strides[8] = {};
  if (get == nullptr || get(probabilities, 8, &type, &dimensions, sizes, strides) != 0) return cudnn::kBadParam;
  return estimate(probabilities, *std::max_element(label_lengths, label_lengths + sizes[1]), bytes);
}

PHANTOM_EXPORT int cudnnGetCTCLossWorkspaceSize_v8(const Handle* handle, int, const void* descriptor,
                                                   const void* probabilities, const void*, std::size_t* bytes) {
  note(Function::cudnnGetCTCLossWorkspaceSize_v8);
  if (handle == nullptr || bytes == nullptr) return cudnn::kBadParam;
  using GetLoss = int (*)(const void*, int*, int*, int*, int*);
  const auto get = reinterpret_cast<GetLoss>(cudnn::library_function("cudnnGetCTCLossDescriptor_v9"));
  int type = 0, normalization = 0, gradient = 0, longest = 0;
  if (get == nullptr || get(descriptor, &type, &normalization, &gradient, &longest) != 0) longest = kLongestLabel;
  return estimate(probabilities, longest, bytes);
}
