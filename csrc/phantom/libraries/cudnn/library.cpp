#include "libraries/cudnn/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace xmem::phantom::cudnn {
namespace {

// libcudnn.so.9, not the libraries that it is made of (libcudnn_ops.so.9).
int find_library(dl_phdr_info* info, std::size_t, void* path) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  if (slash == nullptr || std::strncmp(slash, "/libcudnn.so", 12) != 0) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

void* library() {
  static void* const opened =
      library_path().empty() ? nullptr : dlopen(library_path().c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  return opened;
}

}  // namespace

const std::string& library_path() {
  static const auto* found = [] {
    auto* path = new std::string;
    dl_iterate_phdr(find_library, path);
    return path;
  }();
  return *found;
}

void* library_function(const char* name) {
  return library() == nullptr ? nullptr : dlsym(library(), name);
}

int library_version() {
  static const int version = [] {
    const auto get = reinterpret_cast<std::size_t (*)()>(library_function("cudnnGetVersion"));
    return get == nullptr ? 0 : static_cast<int>(get());
  }();
  return version;
}

}  // namespace xmem::phantom::cudnn
