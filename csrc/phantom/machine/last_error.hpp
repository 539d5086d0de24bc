// The error that cudaGetLastError returns: the last failure of this thread.
#pragma once

namespace xmem::phantom {

// Remembers a failure and returns it; success leaves what was remembered.
int fail(int error) noexcept;

// What is remembered; taking it forgets it.
int peek_error() noexcept;
int take_error() noexcept;

}  // namespace xmem::phantom
