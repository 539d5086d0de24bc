// What a dropout descriptor was told by the functions that take a handle, which the real descriptor never learns.
#pragma once

namespace xmem::phantom::cudnn {

// The rate, 0 for a descriptor that was never set.
float dropout_rate(const void* descriptor);

}  // namespace xmem::phantom::cudnn
