#include "driver/entry_points.hpp"

#include <dlfcn.h>

#include <string>

namespace xmem::phantom {
namespace {

// Driver names carry the version of their interface; callers ask without it.
constexpr const char* kSuffixes[] = {"_v4", "_v3", "_v2", ""};

void* own_library() {
  static void* const library = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&driver_entry_point), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return library;
}

}  // namespace

void* driver_entry_point(const char* name) {
  if (own_library() == nullptr) return nullptr;
  for (const char* suffix : kSuffixes) {
    if (void* found = dlsym(own_library(), (std::string(name) + suffix).c_str())) return found;
  }
  return nullptr;
}

}  // namespace xmem::phantom
