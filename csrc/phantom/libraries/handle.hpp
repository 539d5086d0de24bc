// What the math libraries hand out and take back: handles, plans and descriptors that only they look into.
#pragma once

#include <cstddef>

#include "surface.hpp"

namespace xmem::phantom {

struct Handle {
  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  int pointer_mode = 0;
  int math_mode = 0;
  int atomics_mode = 0;
  int sm_count_target = 0;
  int emulation_strategy = 0;
};

// False when there is no GPU to create it for, or no memory.
bool create_handle(void** handle) noexcept;
void destroy_handle(void* handle) noexcept;

Handle& handle_of(void* handle) noexcept;

// A function of a library issued work on the stream of its handle.
void computed(const void* handle, Function function) noexcept;

// A library wrote a result that is read at once, if the caller asked for it in memory of the host: zeros, as
// everywhere.
void give_zeros(void* result, std::size_t size) noexcept;

}  // namespace xmem::phantom
