// NVML itself: its life, its errors, and the versions of the driver.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "nvml/cards.hpp"

namespace xmem::phantom::nvml {
namespace {

std::atomic<int> users{0};

struct ErrorText {
  int number;
  const char* text;
};
constexpr ErrorText kErrorTexts[] = {
    {kSuccess, "Success"},
    {kUninitialized, "Uninitialized"},
    {kInvalidArgument, "Invalid Argument"},
    {kNotSupported, "Not Supported"},
    {kNotFound, "Not Found"},
    {kInsufficientSize, "Insufficient Size"},
    {kDriverNotLoaded, "Driver Not Loaded"},
    {kVersionMismatch, "Argument Version Mismatch"},
};

// The first driver of each CUDA release, as the release notes of the toolkit list them.
struct DriverRelease {
  int cuda;
  const char* version;
};
constexpr DriverRelease kDriverReleases[] = {
    {13000, "580.65.06"}, {12090, "575.51.03"}, {12080, "570.26"},    {12060, "560.28.03"}, {12050, "555.42.02"},
    {12040, "550.54.14"}, {12030, "545.23.06"}, {12020, "535.54.03"}, {12010, "530.30.02"}, {12000, "525.60.13"},
};

int initialize() {
  if (machine().cards.empty()) return kDriverNotLoaded;
  users.fetch_add(1);
  return kSuccess;
}

}  // namespace

bool initialized() {
  return users.load() > 0;
}

int give_text(const char* text, char* buffer, unsigned length) {
  if (buffer == nullptr) return kInvalidArgument;
  if (length <= std::strlen(text)) return kInsufficientSize;
  std::strcpy(buffer, text);
  return kSuccess;
}

}  // namespace xmem::phantom::nvml

using namespace xmem::phantom;        // NOLINT: what follows is C
using namespace xmem::phantom::nvml;  // NOLINT

PHANTOM_EXPORT int nvmlInit_v2() {
  note(Function::nvmlInit_v2);
  return initialize();
}

PHANTOM_EXPORT int nvmlInitWithFlags(unsigned) {
  note(Function::nvmlInitWithFlags);
  return initialize();
}

PHANTOM_EXPORT int nvmlShutdown() {
  note(Function::nvmlShutdown);
  if (!initialized()) return kUninitialized;
  users.fetch_sub(1);
  return kSuccess;
}

PHANTOM_EXPORT const char* nvmlErrorString(int error) {
  note(Function::nvmlErrorString);
  const auto* known = std::find_if(std::begin(kErrorTexts), std::end(kErrorTexts),
                                   [error](const ErrorText& entry) { return entry.number == error; });
  return known != std::end(kErrorTexts) ? known->text : "Unknown Error";
}

PHANTOM_EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  note(Function::nvmlSystemGetDriverVersion);
  if (!initialized()) return kUninitialized;
  const auto* release =
      std::find_if(std::begin(kDriverReleases), std::end(kDriverReleases),
                   [](const DriverRelease& candidate) { return candidate.cuda <= machine().driver_version; });
  return give_text(release != std::end(kDriverReleases) ? release->version : "525.60.13", text, length);
}

PHANTOM_EXPORT int nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  note(Function::nvmlSystemGetNVMLVersion);
  char driver[32];
  if (const int error = nvmlSystemGetDriverVersion(driver, sizeof driver); error != kSuccess) return error;
  char version[48];
  std::snprintf(version, sizeof version, "%d.%s", machine().driver_version / 1000, driver);
  return give_text(version, text, length);
}

PHANTOM_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  note(Function::nvmlSystemGetCudaDriverVersion_v2);
  if (version == nullptr) return kInvalidArgument;
  *version = machine().driver_version;
  return kSuccess;
}

PHANTOM_EXPORT int nvmlSystemGetProcessName(unsigned process, char* name, unsigned length) {
  note(Function::nvmlSystemGetProcessName);
  if (!initialized()) return kUninitialized;
  if (name == nullptr || length == 0) return kInvalidArgument;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/cmdline", process);
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return kNotFound;
  const std::size_t read = std::fread(name, 1, length - 1, file);
  std::fclose(file);
  name[read] = '\0';  // arguments end with zeros themselves: what remains is the program's name
  return kSuccess;
}
