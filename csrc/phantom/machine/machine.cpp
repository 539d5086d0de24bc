#include "machine/machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "loading/loaded.hpp"
#include "machine/ledger.hpp"

namespace xmem::phantom {
namespace {

std::array<unsigned char, 16> parse_uuid(const std::string& digits) {
  std::array<unsigned char, 16> uuid{};
  for (std::size_t i = 0; i < uuid.size() && 2 * i + 1 < digits.size(); ++i) {
    uuid[i] = static_cast<unsigned char>(std::strtoul(digits.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return uuid;
}

Machine read_machine(const std::string& path) {
  Machine read;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' ');
    const std::string key = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    if (key == "driver_version") {
      read.driver_version = std::atoi(value.c_str());
    } else if (key == "cudnn_library") {
      read.cudnn_library = value;
    } else if (key == "most_waiting") {
      read.most_waiting = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "device") {
      read.devices.emplace_back();
    } else if (read.devices.empty()) {
      continue;
    } else if (Device& device = read.devices.back(); key == "name") {
      device.name = value;
    } else if (key == "uuid") {
      device.uuid = parse_uuid(value);
    } else if (key == "total_memory_bytes") {
      device.total_memory_bytes = std::atoll(value.c_str());
      device.limit_bytes = device.total_memory_bytes;
    } else if (key == "limit_bytes") {
      device.limit_bytes = std::atoll(value.c_str());
    } else if (key == "nvml_total_memory_bytes") {
      device.nvml_total_memory_bytes = std::atoll(value.c_str());
    } else if (key == "context_bytes") {
      device.context_bytes = std::atoll(value.c_str());
    } else if (key == "cudnn") {
      device.cudnn = value;
    } else if (key == "attribute") {
      std::istringstream words(value);
      int number = -1, setting = 0;
      words >> number >> setting;
      if (number >= 0 && number <= kLastDeviceAttribute) device.attributes[static_cast<unsigned>(number)] = setting;
    }
  }
  if (read.devices.size() > kMostDevices) read.devices.resize(kMostDevices);
  return read;
}

// The cards that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their UUID; an entry that names none ends
// the list, as the driver has it.
std::vector<int> visible_cards(const Machine& whole) {
  std::vector<int> cards;
  const char* names = std::getenv("CUDA_VISIBLE_DEVICES");
  if (names == nullptr) {
    for (int card = 0; card < whole.count(); ++card) cards.push_back(card);
    return cards;
  }
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) {
    int found = -1;
    if (name.compare(0, 4, "GPU-") == 0) {
      std::string digits;
      for (const char c : name.substr(4)) {
        if (c != '-') digits += c;
      }
      for (int card = 0; card < whole.count() && found < 0; ++card) {
        const std::array<unsigned char, 16> uuid = parse_uuid(digits);
        const std::size_t known = std::min(digits.size() / 2, uuid.size());
        if (known > 0 && std::memcmp(uuid.data(), whole.device(card).uuid.data(), known) == 0) {
          found = card;
        }
      }
    } else {
      char* end = nullptr;
      const long number = std::strtol(name.c_str(), &end, 10);
      if (end != name.c_str() && whole.has(static_cast<int>(number))) found = static_cast<int>(number);
    }
    if (found < 0) break;
    cards.push_back(found);
  }
  return cards;
}

Machine visible_machine() {
  const char* folder = std::getenv("XMEM_PHANTOM");
  if (folder == nullptr) return {};
  Machine whole = read_machine(std::string(folder) + "/machine");
  Machine seen;
  seen.driver_version = whole.driver_version;
  seen.cudnn_library = whole.cudnn_library;
  seen.most_waiting = whole.most_waiting;
  seen.physical = visible_cards(whole);
  for (const int card : seen.physical) seen.devices.push_back(whole.device(card));
  seen.cards = std::move(whole.devices);
  return seen;
}

// What the CUDA runtime that this process has loaded says of itself; it needs no driver for that.
int version_of_loaded_runtime() {
  int version = 0;
  if (auto* get = loaded<int(int*)>("libcudart", "cudaRuntimeGetVersion")) get(&version);
  return version;
}

thread_local int thread_device = 0;

}  // namespace

const Machine& machine() {
  static const Machine* read = new Machine(visible_machine());  // never destroyed: threads outlive exit handlers
  return *read;
}

int runtime_version() {
  static const int version = [] {
    const int loaded = version_of_loaded_runtime();
    return loaded > 0 ? loaded : machine().driver_version;
  }();
  return version;
}

int cuda_major() {
  return runtime_version() / 1000;
}

int current_device() {
  return thread_device;
}

void set_current_device(int device) {
  thread_device = device;
}

void ensure_context(int device) {
  if (!machine().has(device)) return;
  DeviceUse& use = slot().devices[machine().card(device)];
  if (use.has_context.load(std::memory_order_relaxed) != 0) return;
  use.context_bytes.store(machine().device(device).context_bytes, std::memory_order_relaxed);
  use.has_context.store(1, std::memory_order_relaxed);
  note_peak(static_cast<int>(machine().card(device)));
}

bool has_context(int device) {
  return machine().has(device) &&
         slot().devices[machine().card(device)].has_context.load(std::memory_order_relaxed) != 0;
}

}  // namespace xmem::phantom
