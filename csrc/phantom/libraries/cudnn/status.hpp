// What cuDNN's functions return, of cudnnStatus_t, and the version from which it plans without a device.
#pragma once

namespace xmem::phantom::cudnn {

enum Status : int {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kNotSupported = 3000,
  kInternalError = 4000,
};

// Deviceless ahead-of-time compilation came with 9.8: cudnnGetVersion gives 90800.
inline constexpr int kFirstDeviceless = 90800;

}  // namespace xmem::phantom::cudnn
