// The CUDA libraries that the process has loaded beside the phantom. What they know without a GPU, they are asked.
#pragma once

#include <string>

namespace xmem::phantom {

// The file of the first loaded library whose file name begins with `library` ("libcublas.so"), empty when there is
// none.
std::string loaded_file(const char* library);

// A function of that library, past the phantom's own of that name; null when there is none.
void* loaded_function(const char* library, const char* name);

template <typename Signature>
Signature* loaded(const char* library, const char* name) {
  return reinterpret_cast<Signature*>(loaded_function(library, name));
}

// The version that a library of CUDA gives piece by piece (`cublasGetProperty` and its like), as major, minor, patch;
// zeros when it is not loaded.
struct LibraryVersion {
  int major;
  int minor;
  int patch;
};
LibraryVersion loaded_version(const char* library, const char* get_property);

// Whether an address is one of PyTorch's own libraries. It looks through all their symbols: keep the answer.
bool lies_in_torch(const void* address);

}  // namespace xmem::phantom
