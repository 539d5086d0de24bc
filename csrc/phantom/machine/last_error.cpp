#include "machine/last_error.hpp"

namespace xmem::phantom {
namespace {
thread_local int last_error = 0;
}  // namespace

int fail(int error) noexcept {
  if (error != 0) last_error = error;
  return error;
}

int peek_error() noexcept {
  return last_error;
}

int take_error() noexcept {
  const int error = last_error;
  last_error = 0;
  return error;
}

}  // namespace xmem::phantom
