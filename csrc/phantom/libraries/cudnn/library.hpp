// The cuDNN that this process has loaded. Its descriptors are used as they are, without the phantom: only functions
// that take a handle, and so a device, are exported by it.
#pragma once

#include <string>

namespace xmem::phantom::cudnn {

// The file, empty when none is loaded.
const std::string& library_path();

// As cudnnGetVersion gives it (90100), 0 without a library.
int library_version();

// One of its functions, past the phantom's own of that name; null if there is none.
void* library_function(const char* name);

}  // namespace xmem::phantom::cudnn
