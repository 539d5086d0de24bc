// Driver functions by name, for cuGetProcAddress and the runtime's cudaGetDriverEntryPoint.
#pragma once

namespace xmem::phantom {

// The newest form (`cuMemMap`, `cuMemGetInfo_v2`) of a function by its base name; null when this library has none.
void* driver_entry_point(const char* name);

}  // namespace xmem::phantom
