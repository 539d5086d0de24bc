#include "loading/loaded.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "loading/redirection.hpp"

namespace xmem::phantom {
namespace {

constexpr char kTorch[] = "libtorch_";

struct Search {
  const char* beginning;
  std::string file;
};

int look_at(dl_phdr_info* info, std::size_t, void* search_address) {
  auto* search = static_cast<Search*>(search_address);
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  if (std::strncmp(name, search->beginning, std::strlen(search->beginning)) != 0) return 0;
  search->file = info->dlpi_name;
  return 1;
}

}  // namespace

std::string loaded_file(const char* library) {
  Search search{library, {}};
  dl_iterate_phdr(look_at, &search);
  return search.file;
}

void* loaded_function(const char* library, const char* name) {
  const std::string file = loaded_file(library);
  void* opened = file.empty() ? nullptr : dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (opened == nullptr) return nullptr;
  link_map* map = nullptr;
  dlinfo(opened, RTLD_DI_LINKMAP, &map);
  void* function = map == nullptr ? nullptr : redirected_from(map->l_addr, name);
  if (function == nullptr) function = dlsym(opened, name);
  dlclose(opened);  // it stays loaded: somebody else has it open
  return function;
}

LibraryVersion loaded_version(const char* library, const char* get_property) {
  LibraryVersion version{};
  if (auto* get = loaded<int(int, int*)>(library, get_property)) {
    get(0, &version.major);
    get(1, &version.minor);
    get(2, &version.patch);
  }
  return version;
}

bool lies_in_torch(const void* address) {
  Dl_info found{};
  if (dladdr(address, &found) == 0 || found.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(found.dli_fname, '/');
  return std::strncmp(slash != nullptr ? slash + 1 : found.dli_fname, kTorch, sizeof kTorch - 1) == 0;
}

}  // namespace xmem::phantom
