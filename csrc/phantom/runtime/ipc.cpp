// Memory and events of one process in another of the same run (torch.multiprocessing). A handle says whose memory it
// is; whoever opens it gets addresses of its own and takes no pages, for the exporter's stay counted as long as it has
// them. What the host wrote there does not travel.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/device_memory.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

constexpr unsigned kDisableTimingInterprocess = 2 | 4;

// cudaIpcMemHandle_t and cudaIpcEventHandle_t, which are passed by value.
struct IpcHandle {
  char magic[8];
  std::uint64_t base;
  std::uint64_t size;
  std::int32_t process;
  std::uint32_t card;
  char unused[32];
};
static_assert(sizeof(IpcHandle) == 64);
constexpr char kMemoryMagic[9] = "xmemipcm";
constexpr char kEventMagic[9] = "xmemipce";

bool is(const IpcHandle& handle, const char* magic) {
  return std::memcmp(handle.magic, magic, sizeof handle.magic) == 0;
}

struct Opened {
  void* address;
  std::uint64_t size;
  unsigned users;
};

struct OpenedMemory {
  std::mutex mutex;
  std::map<std::pair<std::int32_t, std::uint64_t>, Opened> by_origin;  // process and its address
};

OpenedMemory& opened_memory() {
  static auto* kept = new OpenedMemory();  // never destroyed: tensors are closed from exit handlers
  return *kept;
}

int device_with_card(unsigned card) {
  for (int device = 0; device < machine().count(); ++device) {
    if (machine().card(device) == card) return device;
  }
  return -1;
}

}  // namespace

PHANTOM_EXPORT int cudaIpcGetMemHandle(IpcHandle* handle, void* address) {
  note(Function::cudaIpcGetMemHandle);
  const int device = device_of(address);
  std::uint64_t base = 0, size = 0;
  // Mapped memory has handles of its own kind: see cuMemExportToShareableHandle.
  if (handle == nullptr || device < 0 || !allocation_of(address, &base, &size)) return fail(kInvalidValue);
  *handle = {};
  std::memcpy(handle->magic, kMemoryMagic, sizeof handle->magic);
  handle->base = base;
  handle->size = size;
  handle->process = getpid();
  handle->card = machine().card(device);
  return kSuccess;
}

PHANTOM_EXPORT int cudaIpcOpenMemHandle(void** address, IpcHandle handle, unsigned) {
  note(Function::cudaIpcOpenMemHandle);
  if (address == nullptr || !is(handle, kMemoryMagic)) return fail(kInvalidValue);
  if (handle.process == getpid()) return fail(kInvalidContext);
  const int device = device_with_card(handle.card);
  if (device < 0) return fail(kInvalidDevice);
  ensure_context(device);
  OpenedMemory& kept = opened_memory();
  const std::lock_guard lock(kept.mutex);
  auto [opened, is_new] = kept.by_origin.insert({{handle.process, handle.base}, {nullptr, handle.size, 0}});
  if (is_new) {
    const int error = reserve_addresses(device, handle.size, kPageBytes, &opened->second.address);
    if (error != kSuccess) {
      kept.by_origin.erase(opened);
      return fail(error);
    }
  }
  ++opened->second.users;
  *address = opened->second.address;
  return kSuccess;
}

PHANTOM_EXPORT int cudaIpcCloseMemHandle(void* address) {
  note(Function::cudaIpcCloseMemHandle);
  OpenedMemory& kept = opened_memory();
  const std::lock_guard lock(kept.mutex);
  for (auto opened = kept.by_origin.begin(); opened != kept.by_origin.end(); ++opened) {
    if (opened->second.address != address) continue;
    if (--opened->second.users > 0) return kSuccess;
    release_addresses(address, opened->second.size);
    kept.by_origin.erase(opened);
    return kSuccess;
  }
  return fail(kInvalidValue);
}

// Events are over as soon as they are recorded, in every process.
PHANTOM_EXPORT int cudaIpcGetEventHandle(IpcHandle* handle, void* event) {
  note(Function::cudaIpcGetEventHandle);
  if (handle == nullptr || event == nullptr) return fail(kInvalidHandle);
  *handle = {};
  std::memcpy(handle->magic, kEventMagic, sizeof handle->magic);
  handle->process = getpid();
  return kSuccess;
}

PHANTOM_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags);

PHANTOM_EXPORT int cudaIpcOpenEventHandle(void** event, IpcHandle handle) {
  note(Function::cudaIpcOpenEventHandle);
  if (!is(handle, kEventMagic)) return fail(kInvalidValue);
  return cudaEventCreateWithFlags(event, kDisableTimingInterprocess);
}
