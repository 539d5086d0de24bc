// cuRAND's generators; their numbers are zeros. PyTorch has generators of its own.
#include "libraries/handle.hpp"
#include "machine/calls.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

PHANTOM_EXPORT int curandCreateGenerator(void** generator, int) {
  constexpr int kInitializationFailed = 203;
  note(Function::curandCreateGenerator);
  return create_handle(generator) ? 0 : kInitializationFailed;
}

PHANTOM_EXPORT int curandSetStream(void* generator, void* stream) {
  constexpr int kNotInitialized = 101;
  note(Function::curandSetStream);
  if (generator == nullptr) return kNotInitialized;
  handle_of(generator).stream = stream;
  return 0;
}
