// The helper process: xmem_phantom_cudnn LIBCUDNN answers the requests that come on file descriptor 3, until that
// closes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libraries/cudnn_described_handle.hpp"
#include "libraries/cudnn_observed_plans.hpp"
#include "libraries/cudnn_planner.hpp"
#include "libraries/cudnn_protocol.hpp"
#include "libraries/cudnn_status.hpp"

using namespace xmem::phantom::cudnn;  // NOLINT: a program

namespace {

constexpr int kSocket = 3;
void* library = nullptr;

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  return function == nullptr ? static_cast<int>(kNotSupported) : function(arguments...);
}

bool receive(void* bytes, std::size_t size) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = read(kSocket, next, size);
    if (count <= 0) return false;
    next += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

void answer(int status, std::int64_t count, const void* payload, std::size_t bytes) {
  const Reply reply{status, static_cast<std::int32_t>(bytes), count};
  std::string text(reinterpret_cast<const char*>(&reply), sizeof reply);
  text.append(static_cast<const char*>(payload), bytes);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t written = write(kSocket, text.data() + sent, text.size() - sent);
    if (written <= 0) _exit(1);
    sent += static_cast<std::size_t>(written);
  }
}

void answer(int status, const std::string& text) {
  answer(status, 0, text.data(), text.size());
}

struct Descriptor {
  int type = 0;
  void* real = nullptr;
  void* config = nullptr;                 // of a plan
  int status = kSuccess;                  // of the first request about it that failed
  std::optional<std::int64_t> workspace;  // of a plan that builds on a device alone
};

// What is observed of plans, where devices are described by handles; null elsewhere.
ObservedPlans* observed = nullptr;

std::map<std::uint64_t, Descriptor>& descriptors() {
  static auto* kept = new std::map<std::uint64_t, Descriptor>();
  return *kept;
}

// The numbers of descriptors in `payload`, as the library's own pointers.
std::vector<void*> reals(const std::string& payload) {
  std::vector<std::uint64_t> numbers(payload.size() / sizeof(std::uint64_t));
  std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(std::uint64_t));
  std::vector<void*> found;
  for (const std::uint64_t number : numbers) found.push_back(descriptors()[number].real);
  return found;
}

void set(const Request& request, const std::string& payload) {
  Descriptor& descriptor = descriptors()[request.descriptor];
  if (observed != nullptr) observed->set(request, payload);
  const void* elements = payload.data();
  std::vector<void*> pointers;
  if (request.type == kDescriptorType || request.type == kHandleType) {
    pointers = reals(payload);
    elements = pointers.data();
  }
  if (request.kind == kPlanConfig && !pointers.empty()) descriptor.config = pointers.front();
  const int status =
      call("cudnnBackendSetAttribute", descriptor.real, request.kind, request.type, request.count, elements);
  if (descriptor.status == kSuccess) descriptor.status = status;
}

void get(const Request& request, const std::string& payload) {
  const Descriptor& descriptor = descriptors()[request.descriptor];
  if (request.kind == kPlanWorkspace && descriptor.workspace) {
    return answer(kSuccess, 1, &*descriptor.workspace, request.count > 0 ? sizeof *descriptor.workspace : 0);
  }
  void* const real = descriptor.real;
  std::int64_t count = 0;
  if (observed != nullptr && request.type == kDescriptorType) observed->filled(request.descriptor, payload);
  // Descriptors are filled in place; what comes back are the numbers that the caller gave.
  std::vector<void*> pointers = reals(payload);
  const bool in_place = request.type == kDescriptorType;
  std::string elements(element_bytes(request.type) * static_cast<std::size_t>(request.count), '\0');
  void* room = in_place ? static_cast<void*>(pointers.data()) : elements.data();
  const int status = call("cudnnBackendGetAttribute", real, request.kind, request.type, request.count, &count,
                          request.count > 0 ? room : nullptr);
  const std::string& back = in_place ? payload : elements;
  const std::int64_t filled = status == kSuccess ? std::min(count, request.count) : 0;  // callers promise too much room
  answer(status, count, back.data(), element_bytes(request.type) * static_cast<std::size_t>(filled));
}

// Whether the engine that a plan was made of works on tensor cores.
bool uses_tensor_cores(void* config) {
  constexpr int kNotes = 1303, kNumericalNote = 11, kTensorCores = 0;
  void* engine = nullptr;
  std::int64_t count = 0;
  std::array<std::int32_t, 64> notes{};
  call("cudnnBackendCreateDescriptor", int{kEngine}, &engine);
  call("cudnnBackendGetAttribute", config, int{kConfigEngine}, int{kDescriptorType}, std::int64_t{1}, &count,
       static_cast<void*>(&engine));
  call("cudnnBackendGetAttribute", engine, kNotes, kNumericalNote, static_cast<std::int64_t>(notes.size()), &count,
       static_cast<void*>(notes.data()));
  call("cudnnBackendDestroyDescriptor", engine);
  const auto end = notes.begin() + std::clamp<std::int64_t>(count, 0, notes.size());
  return std::find(notes.begin(), end, kTensorCores) != end;
}

int finalize_plan(std::uint64_t number, Descriptor& plan, int status) {
  BuiltPlan built{status == kSuccess, 0};
  if (built.built) {
    std::int64_t count = 0;
    call("cudnnBackendGetAttribute", plan.real, int{kPlanWorkspace}, int{kInt64Type}, std::int64_t{1}, &count,
         static_cast<void*>(&built.workspace));
  }
  built = observed->on_device(number, built, uses_tensor_cores(plan.config));
  if (built.built) plan.workspace = built.workspace;
  return built.built ? kSuccess : kNotSupported;
}

void finalize(const Request& request) {
  Descriptor& descriptor = descriptors()[request.descriptor];
  int status = call("cudnnBackendFinalize", descriptor.real);
  if (observed != nullptr && descriptor.type == kPlan && (status == kSuccess || status == kNotSupported)) {
    status = finalize_plan(request.descriptor, descriptor, status);
  }
  answer(descriptor.status != kSuccess && status == kSuccess ? descriptor.status : status, {});
}

// A block of zeros stands for the handle: the sizes are computed from the descriptors before anything of the device is
// looked at, and stay when that then fails (tried with 9.1, 9.8 and 9.20). Should another version follow a pointer in
// it, this process ends, and the phantom goes on with its own estimate.
void rnn_sizes(const std::string& payload) {
  RnnQuery query{};
  std::memcpy(&query, payload.data(), sizeof query);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(query.batch_size));
  std::memcpy(lengths.data(), payload.data() + sizeof query, lengths.size() * sizeof(std::int32_t));
  static char blank_handle[1 << 16];
  void *dropout = nullptr, *network = nullptr, *data = nullptr;
  call("cudnnCreateDropoutDescriptor", &dropout);
  call("cudnnCreateRNNDescriptor", &network);
  call("cudnnCreateRNNDataDescriptor", &data);
  if (query.dropout > 0) {
    static char states[16];
    call("cudnnRestoreDropoutDescriptor", dropout, static_cast<void*>(blank_handle), query.dropout,
         static_cast<void*>(states), sizeof states, 0ULL);
  }
  const double padding = 0;
  int status = call("cudnnSetRNNDescriptor_v8", network, query.algorithm, query.cell, query.bias, query.direction,
                    query.input_mode, query.data_type, query.math_precision, query.math_type, query.input_size,
                    query.hidden_size, query.projection_size, query.layers, dropout, query.flags);
  if (status == kSuccess) {
    status =
        call("cudnnSetRNNDataDescriptor", data, query.data_type, query.layout, query.longest, query.batch_size,
             query.vector_size, static_cast<const std::int32_t*>(lengths.data()), static_cast<const void*>(&padding));
  }
  RnnSizes sizes{};
  if (status == kSuccess) {
    call("cudnnGetRNNTempSpaceSizes", static_cast<void*>(blank_handle), network, query.forward_mode, data, &sizes.work,
         &sizes.reserve);
    if (sizes.work == 0) status = kNotSupported;
  }
  call("cudnnDestroyRNNDataDescriptor", data);
  call("cudnnDestroyRNNDescriptor", network);
  call("cudnnDestroyDropoutDescriptor", dropout);
  answer(status, 0, &sizes, sizeof sizes);
}

void serve(const Request& request, const std::string& payload) {
  switch (request.operation) {
    case Operation::kCreate: {
      Descriptor& made = descriptors()[request.descriptor];
      made.type = request.kind;
      made.status = call("cudnnBackendCreateDescriptor", request.kind, &made.real);
      return;
    }
    case Operation::kDestroy:
      call("cudnnBackendDestroyDescriptor", descriptors()[request.descriptor].real);
      descriptors().erase(request.descriptor);
      if (observed != nullptr) observed->destroyed(request.descriptor);
      return;
    case Operation::kSet:
      return set(request, payload);
    case Operation::kGet:
      return get(request, payload);
    case Operation::kFinalize:
      return finalize(request);
    case Operation::kError: {
      char text[512] = "";
      const auto last = reinterpret_cast<void (*)(char*, std::size_t)>(dlsym(library, "cudnnGetLastErrorString"));
      if (last != nullptr) last(text, sizeof text);
      return answer(kSuccess, text);
    }
    case Operation::kVersion: {
      const auto version = reinterpret_cast<std::size_t (*)()>(dlsym(library, "cudnnGetVersion"));
      if (version == nullptr) return answer(kInternalError, dlerror());
      return answer(kSuccess, static_cast<std::int64_t>(version()), nullptr, 0);
    }
    case Operation::kRnnSizes:
      return rnn_sizes(payload);
    case Operation::kHandle: {
      void* const handle = described_handle(payload);
      descriptors()[request.descriptor].real = handle;
      const bool heeded = handle != nullptr && heeds_described_handle(library, handle);
      if (heeded && observed == nullptr) observed = new ObservedPlans();
      return answer(heeded ? kSuccess : kNotSupported, {});
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("usage: xmem_phantom_cudnn LIBCUDNN, with a socket as file descriptor 3\n", stderr);
    return 2;
  }
  if (fork() != 0) _exit(0);  // so that nobody has to wait for the process that stays
  // A library that ends the process says so on standard error, which is the training's: its caller reports it instead.
  if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) dup2(nowhere, STDERR_FILENO);
  library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  std::string load_error = library == nullptr ? dlerror() : "";
  Request request{};
  while (receive(&request, sizeof request)) {
    std::string payload(static_cast<std::size_t>(request.payload_bytes), '\0');
    if (!receive(payload.data(), payload.size())) break;
    if (library == nullptr)
      answer(kInternalError, load_error);
    else
      serve(request, payload);
  }
  _exit(0);
}
