#include "runtime/launch_arguments.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "memory/watched.hpp"
#include "runtime/kernels.hpp"
#include "runtime/registered_kernels.hpp"

namespace xmem::phantom {
namespace {

// Of the stack above the launch: arguments take at most 4 KiB, 32 KiB from compute capability 7.0 on with CUDA 12.1.
constexpr std::size_t kMostArgumentBytes = std::size_t{32} << 10;
constexpr std::size_t kUsualArgumentBytes = std::size_t{8} << 10;

struct Stack {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

Stack stack_of_this_thread() {
  thread_local Stack found = [] {
    Stack stack;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return stack;
    void* begin = nullptr;
    std::size_t size = 0;
    if (pthread_attr_getstack(&attributes, &begin, &size) == 0) {
      stack.begin = reinterpret_cast<std::uintptr_t>(begin);
      stack.end = stack.begin + size;
    }
    pthread_attr_destroy(&attributes);
    return stack;
  }();
  return found;
}

void look_at_the_stack(void** arguments) {
  const Stack stack = stack_of_this_thread();
  const auto given = reinterpret_cast<std::uintptr_t>(arguments);
  const auto here = (reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) + 7) / 8 * 8;
  if (given < here || given >= stack.end || given - here > kMostArgumentBytes) return anything_may_be_written();
  const std::uintptr_t end = std::min(stack.end, std::max(here, given) + kUsualArgumentBytes);
  argument_may_write(reinterpret_cast<const void*>(here), end - here);
}

}  // namespace

void look_at_arguments(const void* handle, void** arguments) {
  if (!anything_watched() || is_of_torch(handle)) return;
  if (arguments == nullptr) return anything_may_be_written();
  const Kernel kernel = loaded_kernel(handle);
  if (!kernel.parameters_known) return look_at_the_stack(arguments);
  for (const Parameter& parameter : kernel.parameters) argument_may_write(arguments[parameter.number], parameter.bytes);
}

}  // namespace xmem::phantom
