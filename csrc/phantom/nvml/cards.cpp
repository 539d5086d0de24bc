// Which cards there are, and what each of them is.
#include "nvml/cards.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "machine/calls.hpp"

namespace xmem::phantom::nvml {
namespace {

constexpr std::uintptr_t kHandleBase = 0xca4d0000;
constexpr std::uintptr_t kHandleStep = 64;

int count() {
  return static_cast<int>(machine().cards.size());
}

const Device& description(int card) {
  return machine().cards[static_cast<unsigned>(card)];
}

std::string uuid_text(const Device& card) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < card.uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", card.uuid[i]);
    text += digits;
  }
  return text;
}

// nvmlPciInfo_t as of version 3; version 2 ends with reserved words in place of the long text.
struct PciInfo {
  char short_text[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char text[32];
};
constexpr std::size_t kPciInfoBytesVersion1 = offsetof(PciInfo, subsystem_id);
constexpr std::size_t kPciInfoBytesVersion2 = offsetof(PciInfo, text) + 4 * sizeof(unsigned);

PciInfo pci_info(const Device& card) {
  PciInfo info{};
  info.domain = static_cast<unsigned>(card.attribute(kPciDomainId));
  info.bus = static_cast<unsigned>(card.attribute(kPciBusId));
  info.device = static_cast<unsigned>(card.attribute(kPciDeviceId));
  std::snprintf(info.short_text, sizeof info.short_text, "%04X:%02X:%02X.0", info.domain & 0xffffU, info.bus & 0xffU,
                info.device & 0xffU);
  std::snprintf(info.text, sizeof info.text, "%08X:%02X:%02X.0", info.domain, info.bus & 0xffU, info.device & 0xffU);
  return info;
}

int give_pci_info(const void* handle, void* info, std::size_t size) {
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  if (info == nullptr) return kInvalidArgument;
  const PciInfo whole = pci_info(*card);
  std::memset(info, 0, size);
  std::memcpy(info, &whole, size == sizeof whole ? size : std::min(size, offsetof(PciInfo, text)));
  return kSuccess;
}

// nvmlDeviceArchitecture_t, by compute capability.
unsigned architecture(const Device& card) {
  const int capability = card.capability();
  if (capability >= 100) return 10;  // Blackwell
  if (capability >= 90) return 9;
  if (capability >= 89) return 8;
  if (capability >= 80) return 7;
  if (capability >= 75) return 6;
  if (capability >= 70) return 5;
  if (capability >= 60) return 4;
  return 3;
}

}  // namespace

void* handle_of(int card) {
  return reinterpret_cast<void*>(kHandleBase + kHandleStep * static_cast<unsigned>(card));
}

int card_of(const void* handle, int* number, const Device** card) {
  if (!initialized()) return kUninitialized;
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(handle) - kHandleBase;
  if (offset % kHandleStep != 0 || offset / kHandleStep >= machine().cards.size()) return kInvalidArgument;
  *number = static_cast<int>(offset / kHandleStep);
  *card = &description(*number);
  return kSuccess;
}

}  // namespace xmem::phantom::nvml

using namespace xmem::phantom;        // NOLINT: what follows is C
using namespace xmem::phantom::nvml;  // NOLINT

PHANTOM_EXPORT int nvmlDeviceGetCount_v2(unsigned* cards) {
  note(Function::nvmlDeviceGetCount_v2);
  if (!initialized()) return kUninitialized;
  *cards = static_cast<unsigned>(count());
  return kSuccess;
}

PHANTOM_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  note(Function::nvmlDeviceGetHandleByIndex_v2);
  if (!initialized()) return kUninitialized;
  if (handle == nullptr || index >= static_cast<unsigned>(count())) return kInvalidArgument;
  *handle = handle_of(static_cast<int>(index));
  return kSuccess;
}

PHANTOM_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  note(Function::nvmlDeviceGetHandleByUUID);
  if (!initialized()) return kUninitialized;
  if (uuid == nullptr || handle == nullptr) return kInvalidArgument;
  for (int card = 0; card < count(); ++card) {
    if (uuid_text(description(card)) == uuid) {
      *handle = handle_of(card);
      return kSuccess;
    }
  }
  return kNotFound;
}

// The text is read, not compared: callers write the domain with four or eight digits, or leave it out.
PHANTOM_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** handle) {
  note(Function::nvmlDeviceGetHandleByPciBusId_v2);
  if (!initialized()) return kUninitialized;
  if (text == nullptr || handle == nullptr) return kInvalidArgument;
  unsigned domain = 0, bus = 0, device = 0;
  if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) {
    domain = 0;
    if (std::sscanf(text, "%x:%x", &bus, &device) != 2) return kInvalidArgument;
  }
  for (int card = 0; card < count(); ++card) {
    const PciInfo info = pci_info(description(card));
    if (info.domain == domain && info.bus == bus && info.device == device) {
      *handle = handle_of(card);
      return kSuccess;
    }
  }
  return kNotFound;
}

PHANTOM_EXPORT int nvmlDeviceGetIndex(const void* handle, unsigned* index) {
  note(Function::nvmlDeviceGetIndex);
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  *index = static_cast<unsigned>(number);
  return kSuccess;
}

// The N of /dev/nvidiaN.
PHANTOM_EXPORT int nvmlDeviceGetMinorNumber(const void* handle, unsigned* minor) {
  note(Function::nvmlDeviceGetMinorNumber);
  return nvmlDeviceGetIndex(handle, minor);
}

PHANTOM_EXPORT int nvmlDeviceGetName(const void* handle, char* name, unsigned length) {
  note(Function::nvmlDeviceGetName);
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  return give_text(card->name.c_str(), name, length);
}

PHANTOM_EXPORT int nvmlDeviceGetUUID(const void* handle, char* uuid, unsigned length) {
  note(Function::nvmlDeviceGetUUID);
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  return give_text(uuid_text(*card).c_str(), uuid, length);
}

PHANTOM_EXPORT int nvmlDeviceGetPciInfo(const void* handle, void* info) {
  note(Function::nvmlDeviceGetPciInfo);
  return give_pci_info(handle, info, kPciInfoBytesVersion1);
}

PHANTOM_EXPORT int nvmlDeviceGetPciInfo_v2(const void* handle, void* info) {
  note(Function::nvmlDeviceGetPciInfo_v2);
  return give_pci_info(handle, info, kPciInfoBytesVersion2);
}

PHANTOM_EXPORT int nvmlDeviceGetPciInfo_v3(const void* handle, void* info) {
  note(Function::nvmlDeviceGetPciInfo_v3);
  return give_pci_info(handle, info, sizeof(PciInfo));
}

PHANTOM_EXPORT int nvmlDeviceGetCudaComputeCapability(const void* handle, int* major, int* minor) {
  note(Function::nvmlDeviceGetCudaComputeCapability);
  int number = -1;
  const Device* card = nullptr;
  if (const int error = card_of(handle, &number, &card); error != kSuccess) return error;
  *major = card->attribute(kComputeCapabilityMajor);
  *minor = card->attribute(kComputeCapabilityMinor);
  return kSuccess;
}

PHANTOM_EXPORT int nvmlDeviceGetArchitecture(const void* handle, unsigned* value) {
  note(Function::nvmlDeviceGetArchitecture);
  return answer(handle, value, architecture);
}

// nvmlBrandType_t: GeForce, or the one of data centre cards.
PHANTOM_EXPORT int nvmlDeviceGetBrand(const void* handle, int* brand) {
  note(Function::nvmlDeviceGetBrand);
  return answer(handle, brand,
                [](const Device& card) { return card.name.find("GeForce") != std::string::npos ? 5 : 14; });
}

PHANTOM_EXPORT int nvmlDeviceGetBoardId(const void* handle, unsigned* board) {
  note(Function::nvmlDeviceGetBoardId);
  return answer(handle, board, [](const Device& card) { return card.attribute(kPciBusId) << 8; });
}

PHANTOM_EXPORT int nvmlDeviceGetMultiGpuBoard(const void* handle, unsigned* is_multi) {
  note(Function::nvmlDeviceGetMultiGpuBoard);
  return answer(handle, is_multi, [](const Device& card) { return card.attribute(kIsMultiGpuBoard); });
}

PHANTOM_EXPORT int nvmlDeviceIsMigDeviceHandle(const void* handle, unsigned* is_mig) {
  note(Function::nvmlDeviceIsMigDeviceHandle);
  return answer(handle, is_mig, [](const Device&) { return 0; });
}

PHANTOM_EXPORT int nvmlDeviceGetMaxMigDeviceCount(const void* handle, unsigned* most) {
  note(Function::nvmlDeviceGetMaxMigDeviceCount);
  return answer(handle, most, [](const Device&) { return 0; });
}

PHANTOM_EXPORT int nvmlDeviceGetMemoryBusWidth(const void* handle, unsigned* bits) {
  note(Function::nvmlDeviceGetMemoryBusWidth);
  return answer(handle, bits, [](const Device& card) { return card.attribute(kGlobalMemoryBusWidth); });
}
