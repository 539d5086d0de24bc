#include "libraries/cudnn/planning/described_handle.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libraries/cudnn/planning/device_description.hpp"
#include "libraries/cudnn/planning/planner.hpp"
#include "libraries/cudnn/planning/protocol.hpp"
#include "libraries/cudnn/status.hpp"

namespace xmem::phantom::cudnn {
namespace {

// What a handle begins with. Observed: a finalized operation graph (9.1 and 9.5) has read the first 200 bytes of its
// handle and no others, and 9.8 keeps the members of a described device in this order.
struct DeviceProperties {
  std::int32_t max_grid[3];
  std::int32_t max_block[3];
  std::int32_t registers_per_block;
  std::int32_t multiprocessors;
  std::int32_t warp_size;
  std::int32_t shared_memory_per_block;
  std::int32_t shared_memory_per_block_optin;
  std::int32_t reserved_shared_memory_per_block;
  std::int32_t registers_per_multiprocessor;
  std::int32_t blocks_per_multiprocessor;
  std::int32_t threads_per_multiprocessor;
  std::int32_t pci_device;
  std::int32_t tcc_driver;
  std::int32_t cooperative_launch;
  std::int64_t total_memory;
  std::int32_t clock_khz;
  std::int32_t memory_clock_khz;
  std::int32_t l2_cache;
  std::int32_t device;
  std::int32_t version;  // 860 for compute capability 8.6
  std::int32_t driver;
};
static_assert(offsetof(DeviceProperties, total_memory) == 72 && offsetof(DeviceProperties, version) == 96);

constexpr std::size_t kHandleBytes = std::size_t{1} << 16;

// A convolution of 3 x 3 in the graph API, given to one handle after the other.
class Probe {
 public:
  explicit Probe(void* library)
      : create_(reinterpret_cast<Create>(dlsym(library, "cudnnBackendCreateDescriptor"))),
        set_(reinterpret_cast<Set>(dlsym(library, "cudnnBackendSetAttribute"))),
        get_(reinterpret_cast<Get>(dlsym(library, "cudnnBackendGetAttribute"))),
        finalize_(reinterpret_cast<Finalize>(dlsym(library, "cudnnBackendFinalize"))) {
    if (!usable()) return;
    void* convolution = made(1, [this](void* descriptor) {
      const std::array<std::int64_t, 2> ones{1, 1};
      const std::int64_t dimensions = 2;
      const std::int32_t single_precision = 0, cross_correlation = 1;
      set_(descriptor, 100, 1, 1, &single_precision);
      set_(descriptor, 101, 7, 1, &cross_correlation);
      set_(descriptor, 106, kInt64Type, 1, &dimensions);
      for (const int attribute : {102, 103, 104, 105}) set_(descriptor, attribute, kInt64Type, 2, ones.data());
    });
    void* image = tensor('x', {8, 64, 32, 32});
    void* filter = tensor('w', {64, 64, 3, 3});
    void* output = tensor('y', {8, 64, 32, 32});
    operation_ = made(10, [&](void* descriptor) {
      const float one = 1, zero = 0;
      set_(descriptor, 702, kDescriptorType, 1, &convolution);
      set_(descriptor, 703, kDescriptorType, 1, &filter);
      set_(descriptor, 704, kDescriptorType, 1, &image);
      set_(descriptor, 705, kDescriptorType, 1, &output);
      set_(descriptor, 700, 4, 1, &one);
      set_(descriptor, 701, 4, 1, &zero);
    });
  }

  bool usable() const { return create_ != nullptr && set_ != nullptr && get_ != nullptr && finalize_ != nullptr; }

  bool has_plan(void* handle) const {
    void* graph = made(15, [&](void* descriptor) {
      set_(descriptor, kGraphHandle, kHandleType, 1, &handle);
      set_(descriptor, 801, kDescriptorType, 1, &operation_);
    });
    void* heuristics = made(kHeuristics, [&](void* descriptor) {
      const std::int32_t instant = 0;
      set_(descriptor, 200, 8, 1, &instant);
      set_(descriptor, 201, kDescriptorType, 1, &graph);
    });
    std::array<void*, 16> configs{};
    for (void*& config : configs) create_(kEngineConfig, &config);
    std::int64_t found = 0;
    get_(heuristics, kHeuristicsResults, kDescriptorType, configs.size(), &found, configs.data());
    return std::any_of(configs.begin(), configs.begin() + std::min<std::int64_t>(found, configs.size()),
                       [&](void* config) { return is_plan(config, handle); });
  }

 private:
  bool is_plan(void* config, void* handle) const {
    void* plan = nullptr;
    create_(kPlan, &plan);
    set_(plan, kPlanHandle, kHandleType, 1, &handle);
    set_(plan, kPlanConfig, kDescriptorType, 1, &config);
    return finalize_(plan) == kSuccess;
  }

  using Create = int (*)(int, void**);
  using Set = int (*)(void*, int, int, std::int64_t, const void*);
  using Get = int (*)(void*, int, int, std::int64_t, std::int64_t*, void*);
  using Finalize = int (*)(void*);

  template <typename Fill>
  void* made(int type, const Fill& fill) const {
    void* descriptor = nullptr;
    create_(type, &descriptor);
    fill(descriptor);
    finalize_(descriptor);
    return descriptor;
  }

  void* tensor(std::int64_t id, const std::array<std::int64_t, 4>& sizes) const {
    return made(17, [&](void* descriptor) {
      const std::array<std::int64_t, 4> strides{sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
      const std::int64_t alignment = 16;
      const std::int32_t single_precision = 0;
      set_(descriptor, 900, kInt64Type, 1, &alignment);
      set_(descriptor, 901, 1, 1, &single_precision);
      set_(descriptor, 902, kInt64Type, 4, sizes.data());
      set_(descriptor, 903, kInt64Type, 4, strides.data());
      set_(descriptor, 906, kInt64Type, 1, &id);
    });
  }

  Create create_;
  Set set_;
  Get get_;
  Finalize finalize_;
  void* operation_ = nullptr;
};

void* blank_handle() {
  void* made = mmap(nullptr, kHandleBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made == MAP_FAILED ? nullptr : made;
}

}  // namespace

void* described_handle(const std::string& description) {
  DeviceProperties device{};
  DeviceDescription from(description);
  from.read("maxGridSize", device.max_grid, 3);
  from.read("maxBlockSize", device.max_block, 3);
  from.read("regsPerBlock", &device.registers_per_block);
  from.read("multiProcessorCount", &device.multiprocessors);
  from.read("warpSize", &device.warp_size);
  from.read("maxSharedMemoryPerBlock", &device.shared_memory_per_block);
  from.read("maxSharedMemoryPerBlockOptin", &device.shared_memory_per_block_optin);
  from.read("reservedSharedMemoryPerBlock", &device.reserved_shared_memory_per_block);
  from.read("maxRegistersPerSM", &device.registers_per_multiprocessor);
  from.read("maxCtasPerSM", &device.blocks_per_multiprocessor);
  from.read("maxThreadsPerSM", &device.threads_per_multiprocessor);
  from.read("pciDeviceId", &device.pci_device);
  from.read("isTccDriver", &device.tcc_driver);
  from.read("supportCoopLaunch", &device.cooperative_launch);
  from.read("totalGlobalMem", &device.total_memory);
  from.read("smClockRateKHz", &device.clock_khz);
  from.read("memClockRateKHz", &device.memory_clock_khz);
  from.read("l2CacheSize", &device.l2_cache);
  from.read("cudaDeviceId", &device.device);
  from.read("deviceVer", &device.version);
  from.read("driverVer", &device.driver);
  void* handle = from.complete() ? blank_handle() : nullptr;
  if (handle != nullptr) std::memcpy(handle, &device, sizeof device);
  return handle;
}

bool heeds_described_handle(void* library, void* handle) {
  const Probe probe(library);
  void* nothing = blank_handle();
  return probe.usable() && nothing != nullptr && probe.has_plan(handle) && !probe.has_plan(nothing);
}

}  // namespace xmem::phantom::cudnn
