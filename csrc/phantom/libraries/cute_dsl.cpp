// The part of the runtime of CUTLASS's Python language that has to be the phantom GPU's: its own has a CUDA runtime
// linked in. Compiled code finds these functions first, as the capture puts this library before the language's own
// (capture/child/xmem_child/on_phantom/cute_dsl.py). What they do is what libcute_dsl_runtime.so of nvidia-cutlass-dsl
// 4.8.1 does.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "runtime/kernels.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

extern "C" {
int cudaLibraryUnload(void* library);
const char* cudaGetErrorName(int error);
const char* cudaGetErrorString(int error);
}

namespace {

using Load = int (*)(void** library);
using LoadToDevice = int (*)(void** library, int device);
using Raise = void (*)(const char* kind, const char* message);

int raise_error(Raise raise, int error) {
  const std::string message = std::string("CUDA Error: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error);
  raise("RuntimeError", message.c_str());
  return -1;
}

// The error of the devices if it can be loaded to none of them.
int load_to_devices(void** library, LoadToDevice load) {
  int error = kSuccess, failed = 0;
  for (int device = 0; device < machine().count(); ++device) {
    if (const int found = load(library, device); found != kSuccess) {
      error = found;
      ++failed;
    }
  }
  return failed == machine().count() ? error : kSuccess;
}

}  // namespace

PHANTOM_EXPORT int _cudaLaunchKernel(const void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, void** arguments,
                                     std::size_t shared_bytes, void* stream) {
  note(Function::_cudaLaunchKernel);
  const LaunchShape shape{
      {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, static_cast<unsigned>(shared_bytes), 0};
  return fail(launch_kernel(kernel, shape, stream, arguments));
}

// Loads a library the first time that one of its functions is called; -1 after it has raised an error in Python.
PHANTOM_EXPORT int cuda_dialect_init_library_once(void** library, Load load, LoadToDevice load_to_device, Raise raise) {
  note(Function::cuda_dialect_init_library_once);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (*library != nullptr) return kSuccess;
  void* loaded = nullptr;
  int error = load(&loaded);
  if (error == kSuccess && load_to_device != nullptr) error = load_to_devices(&loaded, load_to_device);
  if (error != kSuccess) return raise_error(raise, error);
  *library = loaded;
  return kSuccess;
}

PHANTOM_EXPORT void cuda_dialect_unload_library_once(void** library) {
  note(Function::cuda_dialect_unload_library_once);
  if (void* loaded = __atomic_exchange_n(library, nullptr, __ATOMIC_ACQ_REL)) cudaLibraryUnload(loaded);
}

PHANTOM_EXPORT void cuda_dialect_print_on_error(int error) {
  note(Function::cuda_dialect_print_on_error);
  if (error == kSuccess) return;
  std::fprintf(stderr, "CUDA Error: %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
}

PHANTOM_EXPORT void cuda_dialect_assert_success(int error) {
  note(Function::cuda_dialect_assert_success);
  cuda_dialect_print_on_error(error);
  if (error != kSuccess) std::abort();
}
