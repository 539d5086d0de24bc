// The driver's own structures: what a caller compiled against cuda.h passes and expects.
#pragma once

#include <cstdint>

namespace xmem::phantom {

// A CUdeviceptr.
using DeviceAddress = std::uint64_t;

// CUmemLocation
enum LocationType : int { kLocationInvalid = 0, kLocationDevice = 1, kLocationHost = 2, kLocationHostNuma = 3 };

struct MemoryLocation {
  int type;
  int id;
};

// CUmemAllocationHandleType
enum ShareableHandleType : int { kHandlePosixFileDescriptor = 1, kHandleFabric = 8 };

// CUmemAllocationProp
struct AllocationProperties {
  int type;
  int requested_handle_types;
  MemoryLocation location;
  void* win32_handle_metadata;
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(AllocationProperties) == 32);

// CUmemAccessDesc; the flags are 0 (none), 1 (read), 3 (read and write)
struct AccessDescription {
  MemoryLocation location;
  int flags;
};

}  // namespace xmem::phantom
