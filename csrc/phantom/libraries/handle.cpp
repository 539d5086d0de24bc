#include "libraries/handle.hpp"

#include <cstring>
#include <new>

#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "runtime/launch_log.hpp"

namespace xmem::phantom {

bool create_handle(void** handle) noexcept {
  *handle = nullptr;
  if (!machine().has(current_device())) return false;
  ensure_context(current_device());
  *handle = new (std::nothrow) Handle();
  return *handle != nullptr;
}

void destroy_handle(void* handle) noexcept {
  delete static_cast<Handle*>(handle);
}

Handle& handle_of(void* handle) noexcept {
  return *static_cast<Handle*>(handle);
}

void computed(const void* handle, Function function) noexcept {
  called(function, handle == nullptr ? nullptr : static_cast<const Handle*>(handle)->stream);
}

void give_zeros(void* result, std::size_t size) noexcept {
  if (result != nullptr && device_of(result) < 0) std::memset(result, 0, size);
}

}  // namespace xmem::phantom
