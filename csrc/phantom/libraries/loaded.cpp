#include "libraries/loaded.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

namespace xmem::phantom {
namespace {

struct Search {
  const char* beginning;
  std::string path;
};

int look_at(dl_phdr_info* info, std::size_t, void* search_address) {
  auto* search = static_cast<Search*>(search_address);
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  if (std::strncmp(name, search->beginning, std::strlen(search->beginning)) != 0) return 0;
  search->path = info->dlpi_name;
  return 1;
}

}  // namespace

void* loaded_function(const char* library, const char* name) {
  Search search{library, {}};
  if (dl_iterate_phdr(look_at, &search) == 0) return nullptr;
  void* opened = dlopen(search.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (opened == nullptr) return nullptr;
  void* function = dlsym(opened, name);
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

}  // namespace xmem::phantom
