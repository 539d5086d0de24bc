// Driver functions by name, for cuGetProcAddress and the runtime's cudaGetDriverEntryPoint.
#pragma once

namespace xmem::phantom {

// The form (`cuMemMap`, `cuMemGetInfo_v2`) that a function had in a version of CUDA (12040), by its base name; null
// when this library has none.
void* driver_entry_point(const char* name, int version);

}  // namespace xmem::phantom
