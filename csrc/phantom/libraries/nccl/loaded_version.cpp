#include "libraries/nccl/loaded_version.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace xmem::phantom {
namespace {

int find_nccl(dl_phdr_info* info, std::size_t, void* path) {
  if (std::strstr(info->dlpi_name, "libnccl.so") == nullptr) return 0;
  *static_cast<const char**>(path) = info->dlpi_name;
  return 1;
}

}  // namespace

int version_of_loaded_nccl() {
  constexpr int kOldest = 22105;
  const char* path = nullptr;
  dl_iterate_phdr(find_nccl, &path);
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return kOldest;
  using GetVersion = int (*)(int*);
  int version = kOldest;
  if (auto get = reinterpret_cast<GetVersion>(dlsym(library, "ncclGetVersion"))) get(&version);
  dlclose(library);
  return version;
}

}  // namespace xmem::phantom
