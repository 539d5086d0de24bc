// The NCCL that the process has loaded, whose place the phantom takes.
#pragma once

namespace xmem::phantom {

// What it says of itself, such as 22705 for 2.27.5; it needs no GPU for that. The oldest known, if none is loaded.
int version_of_loaded_nccl();

}  // namespace xmem::phantom
