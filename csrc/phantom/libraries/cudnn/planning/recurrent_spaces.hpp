// What cudnnGetRNNTempSpaceSizes says for a device that is only described. All that it needs of a device is its version
// and, for persistent kernels of half precision, its multiprocessors, which it reads from the handle: the sizes are
// there before it looks for the device itself, and stay when that fails. So asked, 9.15, 9.19 and 9.20 give to the byte
// the workspaces that 9.19 took on an H200, of all 468 networks measured (bench/gpu/results, libraries).
#pragma once

#include <array>
#include <cstdint>

#include "libraries/cudnn/planning/protocol.hpp"

namespace xmem::phantom::cudnn {

class RecurrentSpaces {
 public:
  // `library`: as dlopen gives it. Should a version follow a pointer in the handle, this process ends.
  explicit RecurrentSpaces(void* library);

  // The status of the answer; `lengths` has batch_size numbers. A library whose handle is laid out otherwise answers as
  // for no device: nothing for bfloat16 and persistent kernels.
  int ask(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes);

 private:
  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const;
  int ask_for_device(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes);

  void* library_;
  std::array<std::int32_t, 1 << 14> handle_{};
  std::int32_t* device_version_ = nullptr;  // in the handle; null where it was not found
};

}  // namespace xmem::phantom::cudnn
