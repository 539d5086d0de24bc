// A cudnnHandle_t: what the phantom needs to know of one. The real library never sees it.
#pragma once

namespace xmem::phantom::cudnn {

struct Handle {
  int device;
  void* stream;
};

}  // namespace xmem::phantom::cudnn
