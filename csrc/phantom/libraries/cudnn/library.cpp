#include "libraries/cudnn/library.hpp"

#include <cstddef>

#include "loading/loaded.hpp"

namespace xmem::phantom::cudnn {
namespace {

constexpr const char* kLibrary = "libcudnn.so";  // not the libraries that it is made of (libcudnn_ops.so.9)

}  // namespace

const std::string& library_path() {
  static const auto* found = new std::string(loaded_file(kLibrary));
  return *found;
}

void* library_function(const char* name) {
  return loaded_function(kLibrary, name);
}

int library_version() {
  static const int version = [] {
    auto* get = loaded<std::size_t()>(kLibrary, "cudnnGetVersion");
    return get == nullptr ? 0 : static_cast<int>(get());
  }();
  return version;
}

}  // namespace xmem::phantom::cudnn
