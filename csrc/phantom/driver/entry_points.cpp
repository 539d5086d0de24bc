#include "driver/entry_points.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom {
namespace {

// Driver names carry the version of their interface; callers ask without it.
constexpr const char* kSuffixes[] = {"_v4", "_v3", "_v2", ""};

// Forms that came with CUDA 11 or later, from cudaTypedefs.h: a caller of an older CUDA passes other arguments. All
// others are older than any caller.
struct Introduced {
  const char* name;
  int version;
};
constexpr Introduced kIntroduced[] = {
    {"cuCtxCreate_v3", 11040},
    {"cuCtxCreate_v4", 12050},
    {"cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize_v2", 13000},
    {"cuDeviceGetUuid_v2", 11040},
    {"cuEventElapsedTime_v2", 12080},
    {"cuGetProcAddress_v2", 12000},
    {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000},
    {"cuGraphAddNode_v2", 12030},
    {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000},
    {"cuGraphGetEdges_v2", 12030},
    {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030},
    {"cuGraphRemoveDependencies_v2", 12030},
    {"cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync_v2", 12020},
    {"cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyBatchAsync_v2", 13000},
    {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCtx_v2", 12050},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
};

bool existed(const std::string& name, int version) {
  const auto* found = std::find_if(std::begin(kIntroduced), std::end(kIntroduced),
                                   [&name](const Introduced& form) { return name == form.name; });
  return found == std::end(kIntroduced) || found->version <= version;
}

void* own_library() {
  static void* const library = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&driver_entry_point), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return library;
}

}  // namespace

void* driver_entry_point(const char* name, int version) {
  if (own_library() == nullptr) return nullptr;
  // Since CUDA 12 the name means the form with flags, which never got a number.
  if (std::strcmp(name, "cuGraphInstantiate") == 0 && version >= 12000) name = "cuGraphInstantiateWithFlags";
  for (const char* suffix : kSuffixes) {
    const std::string form = std::string(name) + suffix;
    if (!existed(form, version)) continue;
    if (void* found = dlsym(own_library(), form.c_str())) return found;
  }
  return nullptr;
}

}  // namespace xmem::phantom

// NVIDIA's private tables, which there are none of. The profiler's library asks for them and stays off without; a CUDA
// 13 runtime that is linked into a library asks, too, and fails.
PHANTOM_EXPORT int cuGetExportTable(const void** table, const void*) {
  xmem::phantom::note(xmem::phantom::Function::cuGetExportTable);
  if (table != nullptr) *table = nullptr;
  return xmem::phantom::kNotFound;
}

// What the runtime gives of the driver. The functions are cudart's; they stand here since the runtime knows nothing of
// the driver.
using namespace xmem::phantom;  // NOLINT: what follows is C

PHANTOM_EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                                    unsigned long long, int* status) {
  note(Function::cudaGetDriverEntryPointByVersion);
  *function = driver_entry_point(name, static_cast<int>(version));
  if (status != nullptr) *status = *function != nullptr ? 0 : 1;  // found, or no such symbol
  return kSuccess;
}

PHANTOM_EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) {
  note(Function::cudaGetDriverEntryPoint);
  *function = driver_entry_point(name, runtime_version());
  if (status != nullptr) *status = *function != nullptr ? 0 : 1;
  return kSuccess;
}
