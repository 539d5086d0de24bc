#include "libraries/cudnn_planner.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "libraries/cudnn_helper.hpp"
#include "libraries/cudnn_library.hpp"
#include "libraries/cudnn_status.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom::cudnn {
namespace {

template <typename Signature>
void look_up(Signature*& function, const char* name) {
  function = reinterpret_cast<Signature*>(library_function(name));
}

Planner bundled_planner() {
  Planner found{};
  look_up(found.create, "cudnnBackendCreateDescriptor");
  look_up(found.destroy, "cudnnBackendDestroyDescriptor");
  look_up(found.set, "cudnnBackendSetAttribute");
  look_up(found.get, "cudnnBackendGetAttribute");
  look_up(found.finalize, "cudnnBackendFinalize");
  look_up(found.last_error, "cudnnGetLastErrorString");
  return found;
}

// The library that the machine file names; the functions of a planner have no object of their own.
Helper& named_helper() {
  static auto* helper = new Helper(machine().cudnn_library);
  return *helper;
}

Planner helper_planner() {
  Planner asked{};
  asked.create = [](int type, void** made) { return named_helper().create(type, made); };
  asked.destroy = [](void* descriptor) { return named_helper().destroy(descriptor); };
  asked.set = [](void* descriptor, int attribute, int type, std::int64_t count, const void* elements) {
    return named_helper().set(descriptor, attribute, type, count, elements);
  };
  asked.get = [](void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements) {
    return named_helper().get(descriptor, attribute, type, room, count, elements);
  };
  asked.finalize = [](void* descriptor) { return named_helper().finalize(descriptor); };
  asked.last_error = [](char* text, std::size_t size) {
    std::snprintf(text, size, "%s", named_helper().last_error().c_str());
  };
  return asked;
}

struct Choice {
  Planner planner{};
  std::vector<void*> devices;  // descriptors, one a device; empty without a library
  std::string planned_by = "none";
  int version = 0;
  std::string reason;  // why it is not the better one
};

std::string error_text(const Planner& asked) {
  char text[512] = "";
  asked.last_error(text, sizeof text);
  return text;
}

// Describes all devices to a library; false, and the reason, when it refuses one: its error names the member of the
// JSON text that it misses.
bool describe_devices(const Planner& asked, Choice& choice) {
  std::vector<void*> made;
  for (const Device& device : machine().devices) {
    void* properties = nullptr;
    const auto length = static_cast<std::int64_t>(device.cudnn.size() + 1);
    if (asked.create(kDeviceProperties, &properties) != kSuccess ||
        asked.set(properties, kDeviceJson, kCharType, length, device.cudnn.c_str()) != kSuccess ||
        asked.finalize(properties) != kSuccess) {
      choice.reason = "the description of " + device.name + " is refused: " + error_text(asked);
      return false;
    }
    made.push_back(properties);
  }
  choice.planner = asked;
  choice.devices = made;
  return true;
}

bool choose_bundled(Choice& choice) {
  if (library_version() < kFirstDeviceless) {
    choice.reason = "cuDNN " + std::to_string(library_version()) + " cannot plan without a device";
    return false;
  }
  if (!describe_devices(bundled_planner(), choice)) return false;
  choice.planned_by = "bundled";
  choice.version = library_version();
  return true;
}

bool choose_helper(Choice& choice) {
  if (machine().cudnn_library.empty()) return false;
  const Helper& helper = named_helper();
  if (helper.version() < kFirstDeviceless) {
    choice.reason += "; " + machine().cudnn_library + ": " +
                     (helper.version() == 0 ? helper.failure() : std::to_string(helper.version()) + " is too old");
    return false;
  }
  if (!describe_devices(helper_planner(), choice)) return false;
  choice.planned_by = "helper";
  choice.version = helper.version();
  return true;
}

// Once a run: the first process that needs it decides, and the others of the run have the same libraries.
void write_down(const Choice& choice) {
  const char* folder = std::getenv("XMEM_PHANTOM");
  if (folder == nullptr) return;
  const int file = open((std::string(folder) + "/cudnn").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return;
  const std::string text = "bundled_version " + std::to_string(library_version()) + "\nplanned_by " +
                           choice.planned_by + "\nversion " + std::to_string(choice.version) + "\nreason " +
                           choice.reason + "\n";
  [[maybe_unused]] const auto written = write(file, text.data(), text.size());
  close(file);
}

Choice choose() {
  Choice choice;
  if (!choose_bundled(choice) && !choose_helper(choice)) choice.planner = bare_planner();
  write_down(choice);
  return choice;
}

const Choice& choice() {
  static const auto* made = new Choice(choose());
  return *made;
}

}  // namespace

const Planner& planner() {
  return choice().planner;
}

void* device_properties(int device) {
  const std::vector<void*>& devices = choice().devices;
  const auto number = static_cast<std::size_t>(device);
  return number < devices.size() ? devices[number] : nullptr;
}

}  // namespace xmem::phantom::cudnn
