// A handle for a GPU that is only described, for cuDNN 9.0 to 9.7: their heuristics and plans need no device, but take
// its properties from the handle that an operation graph is given. From 9.8 on there is a descriptor for that
// (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR), and the properties lie in a handle as they lie in it.
#pragma once

#include <string>

namespace xmem::phantom::cudnn {

// `description`: the text that CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION takes. Null when a member is missing. Lives as
// long as the process.
void* described_handle(const std::string& description);

// Whether a library takes its devices from such handles: of one convolution, it has a plan for the described device and
// none for a handle of zeros. `library`: as dlopen gives it.
bool heeds_described_handle(void* library, void* handle);

}  // namespace xmem::phantom::cudnn
