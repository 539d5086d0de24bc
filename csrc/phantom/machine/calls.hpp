// What every exported function begins with: the ledger learns of the call, so that a crash can be told by its last one
// and an estimate by the functions that were refused.
#pragma once

#include "surface.hpp"

#define PHANTOM_EXPORT extern "C" __attribute__((visibility("default")))

namespace xmem::phantom {

// Counts the call; cheap enough for kernel launches.
void note(Function function) noexcept;

// Counts a call that is not emulated and returns `error`.
int refuse(Function function, int error) noexcept;

// The same for the runtime API, whose errors are also kept for cudaGetLastError.
int refuse_by_runtime(Function function, int error) noexcept;

}  // namespace xmem::phantom

// Exports of the generated table. The arguments are of no interest, so none are declared: the callers of the C calling
// conventions in use (System V x86-64, AAPCS64) clean up after themselves.
#define PHANTOM_SUCCEEDS(name)           \
  PHANTOM_EXPORT int name() {            \
    xmem::phantom::note(Function::name); \
    return 0;                            \
  }
#define PHANTOM_CREATES(name)                            \
  PHANTOM_EXPORT int name(void** handle) {               \
    xmem::phantom::note(Function::name);                 \
    return xmem::phantom::create_handle(handle) ? 0 : 1; \
  }
#define PHANTOM_DESTROYS(name)             \
  PHANTOM_EXPORT int name(void* handle) {  \
    xmem::phantom::note(Function::name);   \
    xmem::phantom::destroy_handle(handle); \
    return 0;                              \
  }
#define PHANTOM_COMPUTES(name)                       \
  PHANTOM_EXPORT int name(const void* handle) {      \
    xmem::phantom::note(Function::name);             \
    xmem::phantom::computed(handle, Function::name); \
    return 0;                                        \
  }
#define PHANTOM_REFUSED(name, error)                     \
  PHANTOM_EXPORT int name() {                            \
    return xmem::phantom::refuse(Function::name, error); \
  }
#define PHANTOM_REFUSED_BY_RUNTIME(name, error)                     \
  PHANTOM_EXPORT int name() {                                       \
    return xmem::phantom::refuse_by_runtime(Function::name, error); \
  }
#if defined(__x86_64__)
#define PHANTOM_JUMP "jmp "
#else
#define PHANTOM_JUMP "b "
#endif
#define PHANTOM_SAME_AS(name, target)                                                         \
  asm(".text\n.globl " #name "\n.type " #name ", %function\n" #name ": " PHANTOM_JUMP #target \
      "@PLT\n"                                                                                \
      ".size " #name ", .-" #name "\n");
