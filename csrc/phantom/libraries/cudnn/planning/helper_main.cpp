// The driver of cuDNN: a process that answers the requests of planning/protocol.hpp on a socket, until that closes. It
// serves the phantom GPU, whose processes it must not disturb, and `xmem.cudnn`, which plans for traces of the CPU.
//
//   xmem_phantom_cudnn [OPTION VALUE]... LIBCUDNN
//   --socket NUMBER   file descriptor of the socket; 3 by default
//   --parent stays    do not detach: end with the parent, and leave standard error to the library
//   --before FILE     a library to load before any work, if it loads; may be repeated
//   --driver FILE     stands in for libcuda.so.1, where the library needs one and there is none
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libraries/cudnn/planning/described_handle.hpp"
#include "libraries/cudnn/planning/observed_plans.hpp"
#include "libraries/cudnn/planning/planner.hpp"
#include "libraries/cudnn/planning/processing_clusters.hpp"
#include "libraries/cudnn/planning/protocol.hpp"
#include "libraries/cudnn/planning/recurrent_spaces.hpp"
#include "libraries/cudnn/status.hpp"

using namespace xmem::phantom::cudnn;  // NOLINT: a program

namespace {

// 9.28 does not plan without its engines that are compiled at run time, which need the driver; 9.24 plans without them,
// and in a hundredth of the time. A driver without a GPU will do, for no kernel is loaded.
constexpr std::size_t kFirstWithDriver = 92500;

int socket_number = 3;
void* library = nullptr;

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  return function == nullptr ? static_cast<int>(kNotSupported) : function(arguments...);
}

bool receive(void* bytes, std::size_t size) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = read(socket_number, next, size);
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
    const ssize_t written = write(socket_number, text.data() + sent, text.size() - sent);
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
  std::string description;                // of a device
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
  if (request.kind == kDeviceJson) descriptor.description = payload;
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
  if (status == kSuccess && descriptor.type == kDeviceProperties) {
    add_processing_clusters(descriptor.real, descriptor.description);
  }
  if (observed != nullptr && descriptor.type == kPlan && (status == kSuccess || status == kNotSupported)) {
    status = finalize_plan(request.descriptor, descriptor, status);
  }
  answer(descriptor.status != kSuccess && status == kSuccess ? descriptor.status : status, {});
}

void rnn_sizes(const std::string& payload) {
  static auto* spaces = new RecurrentSpaces(library);
  RnnQuery query{};
  std::memcpy(&query, payload.data(), sizeof query);
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(query.batch_size));
  std::memcpy(lengths.data(), payload.data() + sizeof query, lengths.size() * sizeof(std::int32_t));
  RnnSizes sizes{};
  const int status = spaces->ask(query, lengths.data(), &sizes);
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

struct Arguments {
  std::string library, driver;
  std::vector<std::string> before;
  bool parent_stays = false;
};

std::optional<Arguments> parse(int count, char** words) {
  Arguments found;
  for (int next = 1; next + 1 < count; next += 2) {
    const std::string option = words[next], value = words[next + 1];
    if (option == "--socket")
      socket_number = std::atoi(value.c_str());
    else if (option == "--parent" && value == "stays")
      found.parent_stays = true;
    else if (option == "--before")
      found.before.push_back(value);
    else if (option == "--driver")
      found.driver = value;
    else
      return std::nullopt;
  }
  if (count % 2 != 0) return std::nullopt;
  found.library = words[count - 1];
  return found;
}

// Stays out of the parent's sight: nobody has to wait for it, and what a library says on standard error, which is the
// training's, is left to the caller to report.
void detach() {
  if (fork() != 0) _exit(0);
  if (const int nowhere = open("/dev/null", O_WRONLY); nowhere >= 0) dup2(nowhere, STDERR_FILENO);
}

// Loads what answers cuDNN in place of cuBLASLt, under the names that it opens: those of two versions of CUDA, and it
// has one. They lie in a folder of their own, where no program finds them instead of the real library.
void load_cublaslt_stand_ins() {
  std::array<char, 4096> program{};
  if (readlink("/proc/self/exe", program.data(), program.size() - 1) < 0) return;
  const std::string path = program.data();
  const std::string folder = path.substr(0, path.rfind('/')) + "/cudnn_planning/";
  for (const char* name : {"libcublasLt.so.12", "libcublasLt.so.13"}) {
    dlopen((folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
}

// Returns why the library cannot be used, empty where it can.
std::string load(const Arguments& asked) {
  library = dlopen(asked.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const auto get_version = reinterpret_cast<std::size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  const std::size_t version = get_version == nullptr ? 0 : get_version();
  // What is observed of older releases has the place of these engines already. Before the real library, which would
  // have the name.
  if (version >= std::size_t{kFirstDeviceless}) load_cublaslt_stand_ins();
  for (const std::string& file : asked.before) dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const bool needs_driver = !asked.driver.empty() && version >= kFirstWithDriver;
  if (needs_driver && dlopen("libcuda.so.1", RTLD_NOW) == nullptr &&
      dlopen(asked.driver.c_str(), RTLD_NOW) == nullptr) {
    return dlerror();
  }
  return "";
}

}  // namespace

int main(int count, char** words) {
  const std::optional<Arguments> asked = parse(count, words);
  if (!asked) {
    std::fputs("usage: xmem_phantom_cudnn [OPTION VALUE]... LIBCUDNN; see helper_main.cpp\n", stderr);
    return 2;
  }
  if (asked->parent_stays)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  else
    detach();
  const std::string failure = load(*asked);
  Request request{};
  while (receive(&request, sizeof request)) {
    std::string payload(static_cast<std::size_t>(request.payload_bytes), '\0');
    if (!receive(payload.data(), payload.size())) break;
    if (!failure.empty())
      answer(kInternalError, failure);
    else
      serve(request, payload);
  }
  _exit(0);
}
