// Devices: how many, which one, and what they are.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "abi/cuda_types.hpp"
#include "abi/device_properties.hpp"
#include "loading/redirection.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/device_memory.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace xmem::phantom {
namespace {

std::size_t size_attribute(const Device& device, DeviceAttribute which) {
  return static_cast<std::size_t>(std::max(device.attribute(which), 0));
}

// What the two layouts have in common, which is all but the fields of CUDA 12 alone.
template <typename Properties>
void describe(Properties& p, const Device& d) {
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "%s", d.name.c_str());
  std::copy(d.uuid.begin(), d.uuid.end(), p.uuid);
  p.totalGlobalMem = static_cast<std::size_t>(d.total_memory_bytes);
  p.sharedMemPerBlock = size_attribute(d, kMaxSharedMemoryPerBlock);
  p.regsPerBlock = d.attribute(kMaxRegistersPerBlock);
  p.warpSize = d.attribute(kWarpSize);
  p.memPitch = size_attribute(d, kMaxPitch);
  p.maxThreadsPerBlock = d.attribute(kMaxThreadsPerBlock);
  p.maxThreadsDim[0] = d.attribute(kMaxBlockDimX);
  p.maxThreadsDim[1] = d.attribute(kMaxBlockDimY);
  p.maxThreadsDim[2] = d.attribute(kMaxBlockDimZ);
  p.maxGridSize[0] = d.attribute(kMaxGridDimX);
  p.maxGridSize[1] = d.attribute(kMaxGridDimY);
  p.maxGridSize[2] = d.attribute(kMaxGridDimZ);
  p.totalConstMem = size_attribute(d, kTotalConstantMemory);
  p.major = d.attribute(kComputeCapabilityMajor);
  p.minor = d.attribute(kComputeCapabilityMinor);
  p.textureAlignment = size_attribute(d, kTextureAlignment);
  p.texturePitchAlignment = size_attribute(d, kTexturePitchAlignment);
  p.multiProcessorCount = d.attribute(kMultiProcessorCount);
  p.integrated = d.attribute(kIntegrated);
  p.canMapHostMemory = d.attribute(kCanMapHostMemory);
  p.maxTexture1D = d.attribute(kMaxTexture1DWidth);
  p.maxTexture2D[0] = d.attribute(kMaxTexture2DWidth);
  p.maxTexture2D[1] = d.attribute(kMaxTexture2DHeight);
  p.maxTexture3D[0] = d.attribute(kMaxTexture3DWidth);
  p.maxTexture3D[1] = d.attribute(kMaxTexture3DHeight);
  p.maxTexture3D[2] = d.attribute(kMaxTexture3DDepth);
  p.surfaceAlignment = size_attribute(d, kSurfaceAlignment);
  p.concurrentKernels = d.attribute(kConcurrentKernels);
  p.ECCEnabled = d.attribute(kEccEnabled);
  p.pciBusID = d.attribute(kPciBusId);
  p.pciDeviceID = d.attribute(kPciDeviceId);
  p.pciDomainID = d.attribute(kPciDomainId);
  p.tccDriver = d.attribute(kTccDriver);
  p.asyncEngineCount = d.attribute(kAsyncEngineCount);
  p.unifiedAddressing = d.attribute(kUnifiedAddressing);
  p.memoryBusWidth = d.attribute(kGlobalMemoryBusWidth);
  p.l2CacheSize = d.attribute(kL2CacheSize);
  p.persistingL2CacheMaxSize = d.attribute(kMaxPersistingL2CacheSize);
  p.maxThreadsPerMultiProcessor = d.attribute(kMaxThreadsPerMultiProcessor);
  p.streamPrioritiesSupported = d.attribute(kStreamPrioritiesSupported);
  p.globalL1CacheSupported = d.attribute(kGlobalL1CacheSupported);
  p.localL1CacheSupported = d.attribute(kLocalL1CacheSupported);
  p.sharedMemPerMultiprocessor = size_attribute(d, kMaxSharedMemoryPerMultiprocessor);
  p.regsPerMultiprocessor = d.attribute(kMaxRegistersPerMultiprocessor);
  p.managedMemory = d.attribute(kManagedMemory);
  p.isMultiGpuBoard = d.attribute(kIsMultiGpuBoard);
  p.multiGpuBoardGroupID = d.attribute(kMultiGpuBoardGroupId);
  p.hostNativeAtomicSupported = d.attribute(kHostNativeAtomicSupported);
  p.pageableMemoryAccess = d.attribute(kPageableMemoryAccess);
  p.concurrentManagedAccess = d.attribute(kConcurrentManagedAccess);
  p.computePreemptionSupported = d.attribute(kComputePreemptionSupported);
  p.canUseHostPointerForRegisteredMem = d.attribute(kCanUseHostPointerForRegisteredMem);
  p.cooperativeLaunch = d.attribute(kCooperativeLaunch);
  p.sharedMemPerBlockOptin = size_attribute(d, kMaxSharedMemoryPerBlockOptin);
  p.pageableMemoryAccessUsesHostPageTables = d.attribute(kPageableMemoryAccessUsesHostPageTables);
  p.directManagedMemAccessFromHost = d.attribute(kDirectManagedMemAccessFromHost);
  p.maxBlocksPerMultiProcessor = d.attribute(kMaxBlocksPerMultiprocessor);
  p.accessPolicyMaxWindowSize = d.attribute(kMaxAccessPolicyWindowSize);
  p.reservedSharedMemPerBlock = size_attribute(d, kReservedSharedMemoryPerBlock);
  p.hostRegisterSupported = d.attribute(kHostRegisterSupported);
  p.sparseCudaArraySupported = d.attribute(kSparseCudaArraySupported);
  p.hostRegisterReadOnlySupported = d.attribute(kHostRegisterReadOnlySupported);
  p.timelineSemaphoreInteropSupported = d.attribute(kTimelineSemaphoreInteropSupported);
  p.memoryPoolsSupported = d.attribute(kMemoryPoolsSupported);
  p.gpuDirectRDMASupported = d.attribute(kGpuDirectRdmaSupported);
  p.memoryPoolSupportedHandleTypes = static_cast<unsigned>(d.attribute(kMemoryPoolSupportedHandleTypes));
  p.deferredMappingCudaArraySupported = d.attribute(kDeferredMappingCudaArraySupported);
  p.ipcEventSupported = d.attribute(kIpcEventSupport);
  p.clusterLaunch = d.attribute(kClusterLaunch);
  p.unifiedFunctionPointers = d.attribute(kUnifiedFunctionPointers);
}

int describe_for_cuda12(void* properties, int device) {
  if (!machine().has(device)) return fail(kInvalidDevice);
  auto& p = *static_cast<DevicePropertiesCuda12*>(properties);
  const Device& d = machine().device(device);
  describe(p, d);
  p.clockRate = d.attribute(kClockRate);
  p.deviceOverlap = d.attribute(kGpuOverlap);
  p.kernelExecTimeoutEnabled = d.attribute(kKernelExecTimeout);
  p.computeMode = d.attribute(kComputeMode);
  p.memoryClockRate = d.attribute(kMemoryClockRate);
  p.singleToDoublePrecisionPerfRatio = d.attribute(kSingleToDoublePrecisionPerfRatio);
  p.cooperativeMultiDeviceLaunch = d.attribute(kCooperativeMultiDeviceLaunch);
  return kSuccess;
}

int describe_for_cuda13(void* properties, int device) {
  if (!machine().has(device)) return fail(kInvalidDevice);
  auto& p = *static_cast<DevicePropertiesCuda13*>(properties);
  const Device& d = machine().device(device);
  describe(p, d);
  p.mpsEnabled = d.attribute(kMpsEnabled);
  return kSuccess;
}

}  // namespace

}  // namespace xmem::phantom

PHANTOM_EXPORT int cudaGetLastError() {
  return take_error();
}

PHANTOM_EXPORT int cudaPeekAtLastError() {
  return peek_error();
}

PHANTOM_EXPORT int cudaGetDeviceCount(int* count) {
  note(Function::cudaGetDeviceCount);
  redirect_loaded_libraries();
  *count = machine().count();
  return *count > 0 ? kSuccess : fail(kNoDevice);
}

PHANTOM_EXPORT int cudaGetDevice(int* device) {
  *device = current_device();
  return machine().count() > 0 ? kSuccess : fail(kNoDevice);
}

PHANTOM_EXPORT int cudaSetDevice(int device) {
  note(Function::cudaSetDevice);
  if (!machine().has(device)) return fail(kInvalidDevice);
  set_current_device(device);
  ensure_context(device);  // since CUDA 12
  return kSuccess;
}

PHANTOM_EXPORT int cudaDriverGetVersion(int* version) {
  note(Function::cudaDriverGetVersion);
  *version = machine().driver_version;
  return kSuccess;
}

PHANTOM_EXPORT int cudaRuntimeGetVersion(int* version) {
  note(Function::cudaRuntimeGetVersion);
  *version = runtime_version();
  return kSuccess;
}

// Before CUDA 12 the structure was a prefix of CUDA 12's; torch 2.6 and newer call _v2 there.
PHANTOM_EXPORT int cudaGetDeviceProperties(void* properties, int device) {
  note(Function::cudaGetDeviceProperties);
  return cuda_major() < 13 ? describe_for_cuda12(properties, device) : describe_for_cuda13(properties, device);
}

PHANTOM_EXPORT int cudaGetDeviceProperties_v2(void* properties, int device) {
  note(Function::cudaGetDeviceProperties_v2);
  return describe_for_cuda12(properties, device);
}

PHANTOM_EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  note(Function::cudaDeviceGetAttribute);
  if (!machine().has(device)) return fail(kInvalidDevice);
  if (attribute < 1 || attribute > kLastDeviceAttribute) return fail(kInvalidValue);
  *value = machine().device(device).attributes[static_cast<unsigned>(attribute)];
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  note(Function::cudaDeviceGetPCIBusId);
  if (!machine().has(device)) return fail(kInvalidDevice);
  const Device& d = machine().device(device);
  std::snprintf(text, static_cast<std::size_t>(std::max(length, 0)), "%04x:%02x:%02x.0", d.attribute(kPciDomainId),
                d.attribute(kPciBusId), d.attribute(kPciDeviceId));
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetByPCIBusId(int* device, const char* text) {
  note(Function::cudaDeviceGetByPCIBusId);
  for (int candidate = 0; candidate < machine().count(); ++candidate) {
    char name[32];
    cudaDeviceGetPCIBusId(name, sizeof name, candidate);
    if (std::strcmp(name, text) == 0) {
      *device = candidate;
      return kSuccess;
    }
  }
  return fail(kInvalidDevice);
}

// Direct access between two cards is what servers with NVLink or PCIe switches allow; all described cards are alike.
PHANTOM_EXPORT int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  note(Function::cudaDeviceCanAccessPeer);
  if (!machine().has(device) || !machine().has(peer)) return fail(kInvalidDevice);
  *can = device != peer ? 1 : 0;
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetP2PAttribute(int* value, int, int, int) {
  note(Function::cudaDeviceGetP2PAttribute);
  *value = 1;
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetLimit(std::size_t* value, int) {
  note(Function::cudaDeviceGetLimit);
  *value = 1024;
  return kSuccess;
}

PHANTOM_EXPORT int cudaGetDeviceFlags(unsigned* flags) {
  note(Function::cudaGetDeviceFlags);
  *flags = 0;
  return kSuccess;
}
