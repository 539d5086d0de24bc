// How much memory of a card is used, and by whom: what the ledger says of all processes of the run.
//
// Approximate: NVML's total includes what the driver keeps for itself, some hundred MiB, which nothing here describes.
// It is the total of cudaMemGetInfo here, and nothing is reserved.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "machine/calls.hpp"
#include "machine/ledger.hpp"
#include "machine/machine.hpp"
#include "nvml/cards.hpp"

using namespace xmem::phantom;        // NOLINT: what follows is C
using namespace xmem::phantom::nvml;  // NOLINT

namespace {

struct MemoryInfo {  // nvmlMemory_t and nvmlBAR1Memory_t
  std::uint64_t total, free, used;
};

struct MemoryInfoVersion2 {  // nvmlMemory_v2_t
  unsigned version;
  std::uint64_t total, reserved, free, used;
};
constexpr unsigned kMemoryInfoVersion2 = sizeof(MemoryInfoVersion2) | 2U << 24;

struct ProcessInfoVersion1 {
  unsigned process;
  std::uint64_t used_bytes;
};

struct ProcessInfo {  // versions 2 and 3
  unsigned process;
  std::uint64_t used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};
constexpr unsigned kNoInstance = 0xffffffff;

int memory_info(const void* handle, MemoryInfo* info) {
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  if (info == nullptr) return kInvalidArgument;
  const std::int64_t used = std::min(used_by_all(number), card->total_memory_bytes);
  info->total = static_cast<std::uint64_t>(card->total_memory_bytes);
  info->used = static_cast<std::uint64_t>(used);
  info->free = info->total - info->used;
  return kSuccess;
}

ProcessInfoVersion1 entry_of(const ProcessUse& use, const ProcessInfoVersion1*) {
  return {static_cast<unsigned>(use.process), static_cast<std::uint64_t>(use.bytes)};
}

ProcessInfo entry_of(const ProcessUse& use, const ProcessInfo*) {
  return {static_cast<unsigned>(use.process), static_cast<std::uint64_t>(use.bytes), kNoInstance, kNoInstance};
}

// As NVML has it: too small an array is an error that says what is needed.
template <typename Info>
int processes(const void* handle, unsigned* count, Info* infos) {
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  if (count == nullptr) return kInvalidArgument;
  const std::vector<ProcessUse> users = users_of(number);
  const auto room = infos != nullptr ? *count : 0U;
  *count = static_cast<unsigned>(users.size());
  if (users.size() > room) return kInsufficientSize;
  for (std::size_t i = 0; i < users.size(); ++i) infos[i] = entry_of(users[i], infos);
  return kSuccess;
}

// Nothing draws on a described card, and no MPS server runs.
int no_processes(const void* handle, unsigned* count) {
  return answer(handle, count, [](const Device&) { return 0; });
}

}  // namespace

PHANTOM_EXPORT int nvmlDeviceGetMemoryInfo(const void* handle, MemoryInfo* info) {
  note(Function::nvmlDeviceGetMemoryInfo);
  return memory_info(handle, info);
}

PHANTOM_EXPORT int nvmlDeviceGetMemoryInfo_v2(const void* handle, MemoryInfoVersion2* info) {
  note(Function::nvmlDeviceGetMemoryInfo_v2);
  if (info == nullptr) return kInvalidArgument;
  if (info->version != kMemoryInfoVersion2) return kVersionMismatch;
  MemoryInfo found{};
  if (const int error = memory_info(handle, &found); error != kSuccess) return error;
  *info = {kMemoryInfoVersion2, found.total, 0, found.free, found.used};
  return kSuccess;
}

// The window through which the host reaches device memory: as large as the memory (resizable BAR), and free.
PHANTOM_EXPORT int nvmlDeviceGetBAR1MemoryInfo(const void* handle, MemoryInfo* info) {
  note(Function::nvmlDeviceGetBAR1MemoryInfo);
  const int error = memory_info(handle, info);
  if (error == kSuccess) *info = {info->total, info->total, 0};
  return error;
}

PHANTOM_EXPORT int nvmlDeviceGetComputeRunningProcesses(const void* handle, unsigned* count,
                                                        ProcessInfoVersion1* infos) {
  note(Function::nvmlDeviceGetComputeRunningProcesses);
  return processes(handle, count, infos);
}

PHANTOM_EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(const void* handle, unsigned* count, ProcessInfo* infos) {
  note(Function::nvmlDeviceGetComputeRunningProcesses_v2);
  return processes(handle, count, infos);
}

PHANTOM_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void* handle, unsigned* count, ProcessInfo* infos) {
  note(Function::nvmlDeviceGetComputeRunningProcesses_v3);
  return processes(handle, count, infos);
}

PHANTOM_EXPORT int nvmlDeviceGetGraphicsRunningProcesses(const void* handle, unsigned* count, void*) {
  note(Function::nvmlDeviceGetGraphicsRunningProcesses);
  return no_processes(handle, count);
}

PHANTOM_EXPORT int nvmlDeviceGetMPSComputeRunningProcesses(const void* handle, unsigned* count, void*) {
  note(Function::nvmlDeviceGetMPSComputeRunningProcesses);
  return no_processes(handle, count);
}
