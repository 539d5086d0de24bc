// The types of CUDA's binary interface, written out: what a caller compiled against CUDA 12 or 13 passes and expects.
// Names follow the CUDA headers; only what this library reads or writes is declared, everything else is a void*.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xmem::phantom {

// A cudaError_t or CUresult: the numbers that this library returns are the same in both, if nothing else is said.
enum Error : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidConfiguration = 9,  // of the runtime alone
  kInvalidDevice = 101,
  kNoDevice = 100,
  kInvalidContext = 201,
  kNoImageForDevice = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kPeerAccessAlreadyEnabled = 704,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureIsolation = 905,
  kCapturedEvent = 907,
  kStreamCaptureWrongThread = 908,
};

struct Dim3 {
  unsigned x, y, z;
};

enum MemcpyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

enum MemoryType : int { kTypeUnregistered = 0, kTypeHost = 1, kTypeDevice = 2, kTypeManaged = 3 };

// CUDA 13 appended `reserved` to this structure: it must not be written for a caller of CUDA 12.
struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};
inline constexpr std::size_t kPointerAttributesBytesCuda12 = offsetof(PointerAttributes, reserved);

struct FuncAttributes {
  std::size_t shared_size_bytes;
  std::size_t const_size_bytes;
  std::size_t local_size_bytes;
  int max_threads_per_block;
  int num_regs;
  int ptx_version;
  int binary_version;
  int cache_mode_ca;
  int max_dynamic_shared_size_bytes;
  int preferred_shmem_carveout;
  int cluster_dim_must_be_set;
  int required_cluster_width;
  int required_cluster_height;
  int required_cluster_depth;
  int cluster_scheduling_policy_preference;
  int non_portable_cluster_size_allowed;
  int reserved[16];
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  std::size_t dynamic_shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };

}  // namespace xmem::phantom
