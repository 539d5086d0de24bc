// How cards reach each other and the host: over PCIe, all under one host bridge; no NVLink is active.
#include <sched.h>

#include <climits>
#include <cstring>

#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "nvml/cards.hpp"

using namespace xmem::phantom;        // NOLINT: what follows is C
using namespace xmem::phantom::nvml;  // NOLINT

namespace {

constexpr unsigned kHostBridge = 30;  // nvmlGpuTopologyLevel_t
constexpr unsigned kInternal = 0;
constexpr unsigned kFabricInfoBytes = 24;  // nvmlGpuFabricInfo_t
constexpr unsigned kLongestFabricInfo = 256;
constexpr unsigned kPcieGeneration = 4;
constexpr unsigned kPcieLanes = 16;

template <typename Value>
int between(const void* first, const void* second, Value* value, Value same, Value different) {
  int one = -1, other = -1;
  const Device* card = nullptr;
  if (const int error = card_of(first, &one, &card); error != kSuccess) return error;
  if (const int error = card_of(second, &other, &card); error != kSuccess) return error;
  if (value == nullptr) return kInvalidArgument;
  *value = one == other ? same : different;
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int nvmlDeviceGetNvLinkState(const void* handle, unsigned, unsigned* active) {
  note(Function::nvmlDeviceGetNvLinkState);
  return answer(handle, active, [](const Device&) { return 0; });
}

// No fabric: NVML_GPU_FABRIC_STATE_NOT_SUPPORTED is 0, as are all other fields then. A success, which torch insists on
// before it maps expandable segments (PeerToPeerAccess.cpp, 2.13).
PHANTOM_EXPORT int nvmlDeviceGetGpuFabricInfo(const void* handle, void* info) {
  note(Function::nvmlDeviceGetGpuFabricInfo);
  int index = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &index, &card); error != kSuccess) return error;
  if (info == nullptr) return kInvalidArgument;
  std::memset(info, 0, kFabricInfoBytes);
  return kSuccess;
}

PHANTOM_EXPORT int nvmlDeviceGetGpuFabricInfoV(const void* handle, unsigned* info) {
  note(Function::nvmlDeviceGetGpuFabricInfoV);
  int index = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &index, &card); error != kSuccess) return error;
  if (info == nullptr) return kInvalidArgument;
  const unsigned bytes = *info & 0xFFFFFF;  // the version, which comes first, holds the size of the structure
  if (bytes < kFabricInfoBytes || bytes > kLongestFabricInfo) return kVersionMismatch;
  std::memset(info + 1, 0, bytes - sizeof *info);
  return kSuccess;
}

PHANTOM_EXPORT int nvmlDeviceGetP2PStatus(const void* first, const void* second, int, int* status) {
  note(Function::nvmlDeviceGetP2PStatus);
  return between(first, second, status, 0, 0);  // NVML_P2P_STATUS_OK, as cudaDeviceCanAccessPeer says
}

PHANTOM_EXPORT int nvmlDeviceGetTopologyCommonAncestor(const void* first, const void* second, unsigned* level) {
  note(Function::nvmlDeviceGetTopologyCommonAncestor);
  return between(first, second, level, kInternal, kHostBridge);
}

PHANTOM_EXPORT int nvmlDeviceOnSameBoard(const void* first, const void* second, int* same) {
  note(Function::nvmlDeviceOnSameBoard);
  return between(first, second, same, 1, 0);
}

PHANTOM_EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(const void* handle, unsigned* generation) {
  note(Function::nvmlDeviceGetCurrPcieLinkGeneration);
  return answer(handle, generation, [](const Device&) { return kPcieGeneration; });
}

PHANTOM_EXPORT int nvmlDeviceGetCurrPcieLinkWidth(const void* handle, unsigned* lanes) {
  note(Function::nvmlDeviceGetCurrPcieLinkWidth);
  return answer(handle, lanes, [](const Device&) { return kPcieLanes; });
}

PHANTOM_EXPORT int nvmlDeviceGetPcieThroughput(const void* handle, int, unsigned* kilobytes_per_second) {
  note(Function::nvmlDeviceGetPcieThroughput);
  return answer(handle, kilobytes_per_second, [](const Device&) { return 0; });
}

// A bit for every processor near the card: those that the process may use.
PHANTOM_EXPORT int nvmlDeviceGetCpuAffinity(const void* handle, unsigned words, unsigned long* set) {
  note(Function::nvmlDeviceGetCpuAffinity);
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  if (words == 0 || set == nullptr) return kInvalidArgument;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  constexpr unsigned kBits = sizeof(unsigned long) * CHAR_BIT;
  for (unsigned word = 0; word < words; ++word) {
    set[word] = 0;
    for (unsigned bit = 0; bit < kBits; ++bit) {
      const unsigned processor = word * kBits + bit;
      if (processor < CPU_SETSIZE && CPU_ISSET(processor, &allowed)) set[word] |= 1UL << bit;
    }
  }
  return kSuccess;
}
