// Code that opens a CUDA library and looks its functions up with dlsym (cuDNN's front end in TransformerEngine, ctypes)
// gets the library's own, past the phantom's, and they want a GPU. So the symbols of these libraries are made to lead
// to the phantom's functions of the same names: their values in memory are changed, no code is.
#pragma once

#include <cstdint>

namespace xmem::phantom {

// Redirects the CUDA libraries that have been loaded since the last call. A library whose symbols the system does not
// allow to be written stays as it is.
void redirect_loaded_libraries();

// Where a symbol of the library at `base` led before; null if it has not been redirected.
void* redirected_from(std::uintptr_t base, const char* name);

}  // namespace xmem::phantom
