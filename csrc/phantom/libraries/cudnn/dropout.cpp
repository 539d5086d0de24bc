// Dropout descriptors and the states of their random numbers.
#include "libraries/cudnn/dropout.hpp"

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

constexpr std::size_t kStateBytesPerThread = 24;

struct Dropout {
  float rate = 0;
  void* states = nullptr;
  unsigned long long seed = 0;
};

struct Dropouts {
  std::mutex mutex;
  std::unordered_map<const void*, Dropout> by_descriptor;
};

Dropouts& dropouts() {
  static auto* kept = new Dropouts();
  return *kept;
}

Dropout find(const void* descriptor) {
  Dropouts& all = dropouts();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_descriptor.find(descriptor);
  return found == all.by_descriptor.end() ? Dropout{} : found->second;
}

void keep(const void* descriptor, const Dropout& dropout) {
  Dropouts& all = dropouts();
  const std::lock_guard lock(all.mutex);
  all.by_descriptor[descriptor] = dropout;
}

}  // namespace

float cudnn::dropout_rate(const void* descriptor) {
  return find(descriptor).rate;
}

// Approximate: a state of XORWOW, cuRAND's default generator, has six words (curand_kernel.h), and one is taken for
// every thread that the device can hold at once.
PHANTOM_EXPORT int cudnnDropoutGetStatesSize(const Handle* handle, std::size_t* bytes) {
  note(Function::cudnnDropoutGetStatesSize);
  if (handle == nullptr || bytes == nullptr) return cudnn::kBadParam;
  const Device& device = machine().device(handle->device);
  *bytes = kStateBytesPerThread * static_cast<std::size_t>(device.attribute(kMultiProcessorCount)) *
           static_cast<std::size_t>(device.attribute(kMaxThreadsPerMultiProcessor));
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnSetDropoutDescriptor(const void* descriptor, const Handle* handle, float rate, void* states,
                                             std::size_t, unsigned long long seed) {
  note(Function::cudnnSetDropoutDescriptor);
  if (descriptor == nullptr || handle == nullptr) return cudnn::kBadParam;
  keep(descriptor, {rate, states, seed});
  if (states != nullptr) called(Function::cudnnSetDropoutDescriptor, handle->stream);  // it fills the states
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnRestoreDropoutDescriptor(const void* descriptor, const Handle* handle, float rate, void* states,
                                                 std::size_t, unsigned long long seed) {
  note(Function::cudnnRestoreDropoutDescriptor);
  if (descriptor == nullptr || handle == nullptr) return cudnn::kBadParam;
  keep(descriptor, {rate, states, seed});
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnGetDropoutDescriptor(const void* descriptor, const Handle* handle, float* rate, void** states,
                                             unsigned long long* seed) {
  note(Function::cudnnGetDropoutDescriptor);
  if (descriptor == nullptr || handle == nullptr) return cudnn::kBadParam;
  const Dropout dropout = find(descriptor);
  if (rate != nullptr) *rate = dropout.rate;
  if (states != nullptr) *states = dropout.states;
  if (seed != nullptr) *seed = dropout.seed;
  return cudnn::kSuccess;
}
