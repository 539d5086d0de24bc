// Code loaded at run time: modules, libraries (the same, loaded without a context) and the linker. Nothing is loaded;
// what a code object says of its kernels is kept for those who ask.
//
// Modules are part of the context: their memory is not counted.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/cuda_types.hpp"
#include "abi/driver_types.hpp"
#include "code/code_object.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/device_memory.hpp"
#include "runtime/kernels.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr int kFileNotFound = 301;

struct Module {
  CodeObject code;
  CodeVersions versions;                           // of the image that was chosen, where that is known
  std::map<std::string, const void*> kernels;      // those that were asked for, by name
  std::map<std::string, DeviceAddress> variables;  // likewise
  std::uint64_t variable_bytes_of(const std::string& name) const {
    for (const Variable& variable : code.variables) {
      if (variable.name == name) return variable.size;
    }
    return 0;
  }
};

struct Modules {
  std::mutex mutex;
  std::unordered_map<void*, Module> by_handle;
  std::unordered_map<const void*, void*> of_kernel;
};

Modules& modules() {
  static auto* kept = new Modules();  // never destroyed: modules are unloaded from exit handlers
  return *kept;
}

int load(void** handle, const void* image, std::size_t readable = SIZE_MAX) {
  if (handle == nullptr || image == nullptr) return kInvalidValue;
  if (machine().count() == 0) return kNoDevice;
  const int capability = machine().has(current_device()) ? machine().device(current_device()).capability() : 0;
  Module made{read_code_object(image, readable, capability), {}, {}, {}};
  if (!made.code.images.empty() && capability > 0) {
    made.versions = choose_image(made.code.images, capability);
    if (!made.versions.runs()) return kNoImageForDevice;
  }
  *handle = new char();
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  kept.by_handle[*handle] = std::move(made);
  return kSuccess;
}

int load_file(void** handle, const char* path) {
  std::FILE* file = path != nullptr ? std::fopen(path, "rb") : nullptr;
  if (file == nullptr) return kFileNotFound;
  std::string bytes;
  char part[65536];
  for (std::size_t read = 0; (read = std::fread(part, 1, sizeof part, file)) > 0;) bytes.append(part, read);
  std::fclose(file);
  return load(handle, bytes.c_str(), bytes.size() + 1);
}

int unload(void* handle) {
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_handle.find(handle);
  if (found == kept.by_handle.end()) return kInvalidHandle;
  for (const auto& [name, kernel] : found->second.kernels) {
    kept.of_kernel.erase(kernel);
    drop_kernel(kernel);
  }
  for (const auto& [name, address] : found->second.variables) {
    release_addresses(reinterpret_cast<void*>(address), kPageBytes);
  }
  kept.by_handle.erase(found);
  delete static_cast<char*>(handle);
  return kSuccess;
}

// Callers hold the lock.
const void* kernel_in(Modules& kept, void* handle, Module& module, const char* name) {
  if (const auto known = module.kernels.find(name); known != module.kernels.end()) return known->second;
  Kernel kernel;
  kernel.name = name;
  if (module.code.listed) {
    bool found = false;
    for (const ListedKernel& candidate : module.code.kernels) {
      if (candidate.name != name) continue;
      kernel.known = true;
      kernel.code = candidate.code;
      kernel.parameters_known = candidate.parameters_known;
      kernel.parameters = candidate.parameters;
      found = true;
    }
    if (!found) return nullptr;
  }
  kernel.versions = module.versions;
  const void* made = keep_kernel(std::move(kernel));
  module.kernels[name] = made;
  kept.of_kernel[made] = handle;
  return made;
}

int find_kernel(const void** kernel, void* handle, const char* name) {
  if (kernel == nullptr || name == nullptr) return kInvalidValue;
  *kernel = nullptr;
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto module = kept.by_handle.find(handle);
  if (module == kept.by_handle.end()) return kInvalidHandle;
  *kernel = kernel_in(kept, handle, module->second, name);
  return *kernel != nullptr ? kSuccess : kNotFound;
}

int count_kernels(unsigned* count, void* handle) {
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto module = kept.by_handle.find(handle);
  if (count == nullptr || module == kept.by_handle.end()) return kInvalidHandle;
  *count = static_cast<unsigned>(module->second.code.kernels.size());
  return kSuccess;
}

int list_kernels(const void** kernels, unsigned room, void* handle) {
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto module = kept.by_handle.find(handle);
  if (kernels == nullptr || module == kept.by_handle.end()) return kInvalidHandle;
  const std::vector<ListedKernel> listed = module->second.code.kernels;
  for (unsigned i = 0; i < room && i < listed.size(); ++i) {
    kernels[i] = kernel_in(kept, handle, module->second, listed[i].name.c_str());
  }
  return kSuccess;
}

// Variables have an address and no storage: they read as zeros.
int find_variable(DeviceAddress* address, std::size_t* size, void* handle, const char* name) {
  if (name == nullptr) return kInvalidValue;
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto module = kept.by_handle.find(handle);
  if (module == kept.by_handle.end()) return kInvalidHandle;
  const std::uint64_t bytes = module->second.variable_bytes_of(name);
  if (module->second.code.listed && bytes == 0) return kNotFound;
  DeviceAddress& known = module->second.variables[name];
  if (known == 0) {
    void* reserved = nullptr;
    if (const int error = reserve_addresses(current_device(), kPageBytes, kPageBytes, &reserved); error != kSuccess) {
      return error;
    }
    known = reinterpret_cast<DeviceAddress>(reserved);
  }
  if (address != nullptr) *address = known;
  if (size != nullptr) *size = bytes;
  return kSuccess;
}

int module_of_kernel(void** module, const void* kernel) {
  Modules& kept = modules();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.of_kernel.find(kernel);
  if (module == nullptr || found == kept.of_kernel.end()) return kInvalidHandle;
  *module = found->second;
  return kSuccess;
}

// What the linker was given; nothing is linked, so the first input is the result.
struct Link {
  std::string bytes;
};

int add_to_link(Link* link, const void* data, std::size_t size) {
  if (link == nullptr || data == nullptr) return kInvalidValue;
  if (link->bytes.empty()) link->bytes.assign(static_cast<const char*>(data), size);
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cuModuleLoad(void** module, const char* path) {
  note(Function::cuModuleLoad);
  return load_file(module, path);
}

PHANTOM_EXPORT int cuModuleLoadData(void** module, const void* image) {
  note(Function::cuModuleLoadData);
  return load(module, image);
}

PHANTOM_EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  note(Function::cuModuleLoadDataEx);
  return load(module, image);
}

PHANTOM_EXPORT int cuModuleLoadFatBinary(void** module, const void* image) {
  note(Function::cuModuleLoadFatBinary);
  return load(module, image);
}

PHANTOM_EXPORT int cuModuleUnload(void* module) {
  note(Function::cuModuleUnload);
  return unload(module);
}

PHANTOM_EXPORT int cuModuleGetFunction(const void** function, void* module, const char* name) {
  note(Function::cuModuleGetFunction);
  return find_kernel(function, module, name);
}

PHANTOM_EXPORT int cuModuleGetFunctionCount(unsigned* count, void* module) {
  note(Function::cuModuleGetFunctionCount);
  return count_kernels(count, module);
}

PHANTOM_EXPORT int cuModuleEnumerateFunctions(const void** functions, unsigned count, void* module) {
  note(Function::cuModuleEnumerateFunctions);
  return list_kernels(functions, count, module);
}

PHANTOM_EXPORT int cuModuleGetGlobal_v2(DeviceAddress* address, std::size_t* size, void* module, const char* name) {
  note(Function::cuModuleGetGlobal_v2);
  return find_variable(address, size, module, name);
}

// CU_MODULE_LAZY_LOADING, the default since CUDA 12.2
PHANTOM_EXPORT int cuModuleGetLoadingMode(int* mode) {
  note(Function::cuModuleGetLoadingMode);
  *mode = 2;
  return kSuccess;
}

PHANTOM_EXPORT int cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**,
                                     unsigned) {
  note(Function::cuLibraryLoadData);
  return load(library, image);
}

PHANTOM_EXPORT int cuLibraryLoadFromFile(void** library, const char* path, int*, void**, unsigned, int*, void**,
                                         unsigned) {
  note(Function::cuLibraryLoadFromFile);
  return load_file(library, path);
}

PHANTOM_EXPORT int cuLibraryUnload(void* library) {
  note(Function::cuLibraryUnload);
  return unload(library);
}

PHANTOM_EXPORT int cuLibraryGetKernel(const void** kernel, void* library, const char* name) {
  note(Function::cuLibraryGetKernel);
  return find_kernel(kernel, library, name);
}

PHANTOM_EXPORT int cuLibraryGetKernelCount(unsigned* count, void* library) {
  note(Function::cuLibraryGetKernelCount);
  return count_kernels(count, library);
}

PHANTOM_EXPORT int cuLibraryEnumerateKernels(const void** kernels, unsigned count, void* library) {
  note(Function::cuLibraryEnumerateKernels);
  return list_kernels(kernels, count, library);
}

PHANTOM_EXPORT int cuLibraryGetGlobal(DeviceAddress* address, std::size_t* size, void* library, const char* name) {
  note(Function::cuLibraryGetGlobal);
  return find_variable(address, size, library, name);
}

// A library is its own module.
PHANTOM_EXPORT int cuLibraryGetModule(void** module, void* library) {
  note(Function::cuLibraryGetModule);
  *module = library;
  return kSuccess;
}

PHANTOM_EXPORT int cuKernelGetLibrary(void** library, const void* kernel) {
  note(Function::cuKernelGetLibrary);
  return module_of_kernel(library, kernel);
}

PHANTOM_EXPORT int cuFuncGetModule(void** module, const void* function) {
  note(Function::cuFuncGetModule);
  return module_of_kernel(module, function);
}

PHANTOM_EXPORT int cuLinkCreate_v2(unsigned, int*, void**, Link** link) {
  note(Function::cuLinkCreate_v2);
  *link = new Link();
  return kSuccess;
}

PHANTOM_EXPORT int cuLinkAddData_v2(Link* link, int, const void* data, std::size_t size, const char*, unsigned, int*,
                                    void**) {
  note(Function::cuLinkAddData_v2);
  return add_to_link(link, data, size);
}

PHANTOM_EXPORT int cuLinkAddFile_v2(Link* link, int, const char* path, unsigned, int*, void**) {
  note(Function::cuLinkAddFile_v2);
  std::FILE* file = path != nullptr ? std::fopen(path, "rb") : nullptr;
  if (file == nullptr) return kFileNotFound;
  std::fclose(file);  // libraries of device functions: kernels come as data
  return link != nullptr ? kSuccess : kInvalidHandle;
}

PHANTOM_EXPORT int cuLinkComplete(Link* link, const void** image, std::size_t* size) {
  note(Function::cuLinkComplete);
  if (link == nullptr) return kInvalidHandle;
  *image = link->bytes.c_str();
  if (size != nullptr) *size = link->bytes.size();
  return kSuccess;
}

PHANTOM_EXPORT int cuLinkDestroy(Link* link) {
  note(Function::cuLinkDestroy);
  delete link;
  return kSuccess;
}

// The runtime's names for libraries; its errors are also kept for cudaGetLastError.

PHANTOM_EXPORT int cudaLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**,
                                       unsigned) {
  note(Function::cudaLibraryLoadData);
  return fail(load(library, image));
}

PHANTOM_EXPORT int cudaLibraryLoadFromFile(void** library, const char* path, int*, void**, unsigned, int*, void**,
                                           unsigned) {
  note(Function::cudaLibraryLoadFromFile);
  return fail(load_file(library, path));
}

PHANTOM_EXPORT int cudaLibraryUnload(void* library) {
  note(Function::cudaLibraryUnload);
  return fail(unload(library));
}

PHANTOM_EXPORT int cudaLibraryGetKernel(const void** kernel, void* library, const char* name) {
  note(Function::cudaLibraryGetKernel);
  return fail(find_kernel(kernel, library, name));
}

PHANTOM_EXPORT int cudaLibraryGetKernelCount(unsigned* count, void* library) {
  note(Function::cudaLibraryGetKernelCount);
  return fail(count_kernels(count, library));
}

PHANTOM_EXPORT int cudaLibraryEnumerateKernels(const void** kernels, unsigned count, void* library) {
  note(Function::cudaLibraryEnumerateKernels);
  return fail(list_kernels(kernels, count, library));
}

PHANTOM_EXPORT int cudaLibraryGetGlobal(DeviceAddress* address, std::size_t* size, void* library, const char* name) {
  note(Function::cudaLibraryGetGlobal);
  return fail(find_variable(address, size, library, name));
}
