// GPUDirect Storage is refused; reads and writes give the number of bytes, so that an error is a negative one.
#include <cstddef>

#include "machine/calls.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {
constexpr int kPlatformNotSupported = 5007;
}

PHANTOM_EXPORT std::ptrdiff_t cuFileRead(void*, void*, std::size_t, long, long) {
  return -refuse(Function::cuFileRead, kPlatformNotSupported);
}

PHANTOM_EXPORT std::ptrdiff_t cuFileWrite(void*, const void*, std::size_t, long, long) {
  return -refuse(Function::cuFileWrite, kPlatformNotSupported);
}
