#include "libraries/cudnn/planning/helper.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "libraries/cudnn/status.hpp"

extern char** environ;  // NOLINT: as POSIX declares it

namespace xmem::phantom::cudnn {
namespace {

constexpr const char* kProgram = "xmem_phantom_cudnn";  // beside this library
constexpr int kSocketOfHelper = 3;

std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

std::string own_folder() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&own_folder), &info);
  return folder_of(info.dli_fname);
}

int add_cuda_folder(dl_phdr_info* info, std::size_t, void* folders) {
  for (const char* name : {"/libcublasLt.so", "/libnvrtc.so", "/libcudart.so"}) {
    if (std::strstr(info->dlpi_name, name) == nullptr) continue;
    static_cast<std::vector<std::string>*>(folders)->push_back(folder_of(info->dlpi_name));
  }
  return 0;
}

// Where the libraries that cuDNN opens lie: beside those that this process has loaded, and, in a Python environment
// with a wheel for each (nvidia/cublas/lib), beside that. Without a libcuda.so.1 it leaves out the engines that it
// compiles at run time, all of attention among them; the phantom's own will do, for no kernel is loaded.
std::string library_path_of_helper() {
  std::vector<std::string> folders;
  dl_iterate_phdr(add_cuda_folder, &folders);
  std::string joined = own_folder() + ":";
  for (const std::string& folder : folders) joined += folder + ":";
  if (folders.empty()) return joined;
  const std::string wheels = folder_of(folder_of(folders.front()));
  if (DIR* listing = opendir(wheels.c_str())) {
    while (const dirent* entry = readdir(listing)) {
      if (entry->d_name[0] == '.' || std::strcmp(entry->d_name, "cudnn") == 0) continue;
      const std::string folder = wheels + "/" + entry->d_name + "/lib";
      if (access(folder.c_str(), X_OK) == 0) joined += folder + ":";
    }
    closedir(listing);
  }
  return joined;
}

// The machine of this process without its ledger, for the helper is none of the run's processes: a folder that leads to
// the same machine file.
std::string phantom_of_helper() {
  const char* folder = std::getenv("XMEM_PHANTOM");
  if (folder == nullptr) return "";
  const std::string own = std::string(folder) + "/cudnn_helper";
  mkdir(own.c_str(), 0755);
  [[maybe_unused]] const int made = symlink("../machine", (own + "/machine").c_str());
  return own;
}

// The environment of this process, with its phantom to look up but not in between.
std::vector<std::string> environment_of_helper() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const auto begins = [&text](const char* with) { return text.compare(0, std::strlen(with), with) == 0; };
    if (!begins("LD_PRELOAD=") && !begins("LD_LIBRARY_PATH=") && !begins("XMEM_PHANTOM=")) variables.push_back(text);
  }
  variables.push_back("LD_LIBRARY_PATH=" + library_path_of_helper());
  variables.push_back("XMEM_PHANTOM=" + phantom_of_helper());
  return variables;
}

void* pointer(std::uint64_t number) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

std::uint64_t number(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

Helper::Helper(const std::string& library) {
  start(library);
  if (socket_ < 0) return;
  const Reply reply = ask({Operation::kVersion, 0, 0, 0, 0, 0}, nullptr, &failure_);
  version_ = reply.status == kSuccess ? static_cast<int>(reply.count) : 0;
  if (version_ == 0 && failure_.empty()) failure_ = "the helper process ended";
}

void Helper::start(const std::string& library) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    failure_ = "cannot make a socket for the helper process";
    return;
  }
  const std::string program = own_folder() + "/" + kProgram;
  std::vector<std::string> words{program, library};
  std::vector<std::string> variables = environment_of_helper();
  const auto to_pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  };
  std::vector<char*> arguments = to_pointers(words);
  std::vector<char*> environment = to_pointers(variables);
  // An end that is number 3 already would keep its close-on-exec flag through dup2.
  int given = ends[1];
  if (given == kSocketOfHelper) given = fcntl(given, F_DUPFD_CLOEXEC, kSocketOfHelper + 1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, given, kSocketOfHelper);
  pid_t child = 0;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(given);
  if (given != ends[1]) close(ends[1]);
  if (error != 0) {
    failure_ = program + ": " + std::strerror(error);
    close(ends[0]);
    return;
  }
  // It leaves a process of its own behind and ends: a script that waits for its children never meets it.
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  socket_ = ends[0];
  owner_ = getpid();
}

void Helper::tell(const Request& request, const void* payload) {
  waiting_.append(reinterpret_cast<const char*>(&request), sizeof request);
  waiting_.append(static_cast<const char*>(payload), static_cast<std::size_t>(request.payload_bytes));
}

bool Helper::send_all() {
  std::size_t sent = 0;
  while (sent < waiting_.size()) {
    const ssize_t count = send(socket_, waiting_.data() + sent, waiting_.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    sent += static_cast<std::size_t>(count);
  }
  waiting_.clear();
  return true;
}

bool Helper::receive(void* bytes, std::size_t size) {
  auto* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = recv(socket_, next, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    next += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

Reply Helper::ask(const Request& request, const void* payload, std::string* answer) {
  const Reply nothing{kInternalError, 0, 0};
  if (socket_ < 0 || owner_ != getpid()) return nothing;
  tell(request, payload);
  Reply reply = nothing;
  bool heard = send_all() && receive(&reply, sizeof reply);
  if (heard) {
    answer->resize(static_cast<std::size_t>(reply.payload_bytes));
    heard = receive(answer->data(), answer->size());
  }
  if (heard) return reply;
  close(socket_);
  socket_ = -1;
  return nothing;
}

int Helper::create(int type, void** descriptor) {
  const std::lock_guard lock(mutex_);
  *descriptor = pointer(++descriptors_);
  tell({Operation::kCreate, type, 0, 0, descriptors_, 0}, nullptr);
  return kSuccess;
}

int Helper::destroy(void* descriptor) {
  const std::lock_guard lock(mutex_);
  tell({Operation::kDestroy, 0, 0, 0, number(descriptor), 0}, nullptr);
  return kSuccess;
}

int Helper::set(void* descriptor, int attribute, int type, std::int64_t count, const void* elements) {
  const std::lock_guard lock(mutex_);
  const auto bytes = static_cast<std::int32_t>(element_bytes(type) * static_cast<std::size_t>(count));
  tell({Operation::kSet, attribute, type, bytes, number(descriptor), count}, elements);
  return kSuccess;
}

int Helper::get(void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements) {
  const std::lock_guard lock(mutex_);
  if (elements == nullptr) room = 0;
  const auto bytes = static_cast<std::int32_t>(
      type == kDescriptorType ? element_bytes(type) * static_cast<std::size_t>(room) : std::size_t{0});
  std::string answer;
  const Reply reply = ask({Operation::kGet, attribute, type, bytes, number(descriptor), room}, elements, &answer);
  if (count != nullptr) *count = reply.count;
  if (!answer.empty()) {
    const std::size_t fits = element_bytes(type) * static_cast<std::size_t>(room);
    std::memcpy(elements, answer.data(), std::min(answer.size(), fits));
  }
  return reply.status;
}

int Helper::finalize(void* descriptor) {
  const std::lock_guard lock(mutex_);
  std::string answer;
  return ask({Operation::kFinalize, 0, 0, 0, number(descriptor), 0}, nullptr, &answer).status;
}

std::string Helper::last_error() {
  const std::lock_guard lock(mutex_);
  std::string answer;
  ask({Operation::kError, 0, 0, 0, 0, 0}, nullptr, &answer);
  return answer;
}

void* Helper::handle(const std::string& description) {
  const std::lock_guard lock(mutex_);
  std::string answer;
  const auto bytes = static_cast<std::int32_t>(description.size());
  const Reply reply = ask({Operation::kHandle, 0, 0, bytes, ++descriptors_, 0}, description.data(), &answer);
  return reply.status == kSuccess ? pointer(descriptors_) : nullptr;
}

bool Helper::rnn_sizes(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes) {
  const std::lock_guard lock(mutex_);
  std::string payload(reinterpret_cast<const char*>(&query), sizeof query);
  payload.append(reinterpret_cast<const char*>(lengths), sizeof *lengths * static_cast<std::size_t>(query.batch_size));
  std::string answer;
  const auto bytes = static_cast<std::int32_t>(payload.size());
  const Reply reply = ask({Operation::kRnnSizes, 0, 0, bytes, 0, 0}, payload.data(), &answer);
  if (reply.status != kSuccess || answer.size() != sizeof *sizes) return false;
  std::memcpy(sizes, answer.data(), sizeof *sizes);
  return true;
}

}  // namespace xmem::phantom::cudnn
