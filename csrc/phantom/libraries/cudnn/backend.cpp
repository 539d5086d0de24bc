// The graph API, through which PyTorch runs convolutions and attention. Graphs, heuristics, engines and plans are a
// planner's, so what PyTorch filters, ranks and allocates for is real; what would need a device is replaced:
//   - handles are kept here, and the descriptions of their devices given to heuristics, engines and plans in their
//   place
//   - variant packs, which hold the addresses of a call, stay here; what an extension names in one may be written
//   - execution is a launch
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libraries/cudnn/described_graphs.hpp"
#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/planning/planner.hpp"
#include "libraries/cudnn/status.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/watched.hpp"
#include "runtime/launch_log.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;

namespace {

constexpr int kDataPointers = 1001;

struct Known {
  int type = 0;
  Handle* handle = nullptr;         // its own, or that of a descriptor it was made of
  std::vector<void*> tensors = {};  // of a variant pack
};

struct Descriptors {
  std::mutex mutex;
  std::unordered_map<void*, Known> known;
};

Descriptors& descriptors() {
  static auto* kept = new Descriptors();
  return *kept;
}

Known known(void* descriptor) {
  Descriptors& all = descriptors();
  const std::lock_guard lock(all.mutex);
  const auto found = all.known.find(descriptor);
  return found == all.known.end() ? Known{} : found->second;
}

bool is_variant_pack(void* descriptor) {
  return known(descriptor).type == cudnn::kVariantPack;
}

void keep_tensors(void* variant_pack, int attribute, std::int64_t count, const void* elements) {
  if (attribute != kDataPointers || count <= 0 || elements == nullptr) return;
  const auto* tensors = static_cast<void* const*>(elements);
  Descriptors& all = descriptors();
  const std::lock_guard lock(all.mutex);
  all.known[variant_pack].tensors.assign(tensors, tensors + count);
}

// PyTorch says what its own calls write. Callers are few, and finding out whose they are takes long.
bool is_torch(const void* caller) {
  static std::mutex mutex;
  static auto* answers = new std::unordered_map<const void*, bool>();
  const std::lock_guard lock(mutex);
  const auto [answer, is_new] = answers->try_emplace(caller);
  if (is_new) answer->second = lies_in_torch(caller);
  return answer->second;
}

void belongs_to(void* descriptor, Handle* handle) {
  if (handle == nullptr) return;
  Descriptors& all = descriptors();
  const std::lock_guard lock(all.mutex);
  all.known[descriptor].handle = handle;
}

}  // namespace

PHANTOM_EXPORT int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  note(Function::cudnnBackendCreateDescriptor);
  if (descriptor == nullptr) return cudnn::kBadParam;
  const int status = type == cudnn::kVariantPack ? cudnn::bare_planner().create(type, descriptor)
                                                 : cudnn::planner().create(type, descriptor);
  if (status != cudnn::kSuccess) return status;
  Descriptors& all = descriptors();
  const std::lock_guard lock(all.mutex);
  all.known[*descriptor] = {type};
  return status;
}

PHANTOM_EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
  note(Function::cudnnBackendDestroyDescriptor);
  int type = 0;
  {
    Descriptors& all = descriptors();
    const std::lock_guard lock(all.mutex);
    const auto found = all.known.find(descriptor);
    if (found != all.known.end()) {
      type = found->second.type;
      all.known.erase(found);
    }
  }
  if (logs_launches()) cudnn::forget_graph(descriptor);
  return type == cudnn::kVariantPack ? cudnn::bare_planner().destroy(descriptor) : cudnn::planner().destroy(descriptor);
}

PHANTOM_EXPORT int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, std::int64_t count,
                                            const void* elements) {
  note(Function::cudnnBackendSetAttribute);
  if (type == cudnn::kHandleType) {
    if (elements == nullptr || count != 1) return cudnn::kBadParam;
    belongs_to(descriptor, *static_cast<Handle* const*>(elements));
    return cudnn::kSuccess;
  }
  if (is_variant_pack(descriptor)) {
    keep_tensors(descriptor, attribute, count, elements);
    return cudnn::bare_planner().set(descriptor, attribute, type, count, elements);
  }
  if (type == cudnn::kDescriptorType && count > 0 && elements != nullptr) {
    belongs_to(descriptor, known(*static_cast<void* const*>(elements)).handle);
  }
  if (logs_launches()) {
    cudnn::follow_attribute(descriptor, known(descriptor).type, attribute, type, count, elements);
  }
  return cudnn::planner().set(descriptor, attribute, type, count, elements);
}

PHANTOM_EXPORT int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, std::int64_t room,
                                            std::int64_t* count, void* elements) {
  note(Function::cudnnBackendGetAttribute);
  if (type == cudnn::kHandleType) {
    if (count != nullptr) *count = 1;
    if (elements != nullptr && room > 0) *static_cast<Handle**>(elements) = known(descriptor).handle;
    return cudnn::kSuccess;
  }
  if (is_variant_pack(descriptor)) {
    return cudnn::bare_planner().get(descriptor, attribute, type, room, count, elements);
  }
  const int status = cudnn::planner().get(descriptor, attribute, type, room, count, elements);
  if (logs_launches() && type == cudnn::kDescriptorType && elements != nullptr) {
    for (std::int64_t i = 0; i < room; ++i) cudnn::follow_copy(descriptor, static_cast<void* const*>(elements)[i]);
  }
  return status;
}

PHANTOM_EXPORT int cudnnBackendFinalize(void* descriptor) {
  note(Function::cudnnBackendFinalize);
  const Known own = known(descriptor);
  if (own.type == cudnn::kVariantPack) return cudnn::kSuccess;
  cudnn::describe_device(descriptor, own.type, own.handle != nullptr ? own.handle->device : current_device());
  return cudnn::planner().finalize(descriptor);
}

PHANTOM_EXPORT int cudnnBackendExecute(const Handle* handle, void* plan, void* variant_pack) {
  note(Function::cudnnBackendExecute);
  if (handle == nullptr) return cudnn::kBadParam;
  if (anything_watched() && !is_torch(__builtin_return_address(0))) {
    for (const void* tensor : known(variant_pack).tensors) result_is_written(tensor);
  }
  called(Function::cudnnBackendExecute, handle->stream, logs_launches() ? cudnn::problem_of_plan(plan) : std::string());
  return cudnn::kSuccess;
}
