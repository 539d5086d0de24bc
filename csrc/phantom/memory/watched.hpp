// Ranges of device memory whose contents somebody knows (capture/child/xmem_child/values), and whether a kernel may
// have written to them since: one that was launched with an address inside of the range among its arguments.
#pragma once

#include <cstddef>

namespace xmem::phantom {

// Whether any range is watched; launches need not be looked at otherwise.
bool anything_watched();

// Marks the ranges that any aligned 8 bytes of an argument point into.
void argument_may_write(const void* bytes, std::size_t size);

// A kernel was launched of whose arguments nothing is known.
void anything_may_be_written();

// A function of a library writes its result there. PyTorch says what its own calls write; those of extensions are only
// seen here.
void result_is_written(const void* result);

}  // namespace xmem::phantom
