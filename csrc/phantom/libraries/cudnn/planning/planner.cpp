#include "libraries/cudnn/planning/planner.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "libraries/cudnn/library.hpp"
#include "libraries/cudnn/planning/helper.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/machine.hpp"

namespace xmem::phantom::cudnn {
namespace {

// The functions of a planner have no object of their own: the helper that was chosen, once it has answered.
Helper* chosen = nullptr;

Planner helper_planner() {
  Planner asked{};
  asked.create = [](int type, void** made) { return chosen->create(type, made); };
  asked.destroy = [](void* descriptor) { return chosen->destroy(descriptor); };
  asked.set = [](void* descriptor, int attribute, int type, std::int64_t count, const void* elements) {
    return chosen->set(descriptor, attribute, type, count, elements);
  };
  asked.get = [](void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements) {
    return chosen->get(descriptor, attribute, type, room, count, elements);
  };
  asked.finalize = [](void* descriptor) { return chosen->finalize(descriptor); };
  return asked;
}

// The attribute that takes the properties of a device, 0 where a descriptor has none.
int properties_attribute(int type) {
  switch (type) {
    case kHeuristics:
      return kHeuristicsDevice;
    case kPlan:
      return kPlanDevice;
    case kEngine:
      return kEngineDevice;
    default:
      return 0;
  }
}

// The attribute that takes a handle, 0 where a descriptor has none.
int handle_attribute(int type) {
  switch (type) {
    case kGraph:
      return kGraphHandle;
    case kPlan:
      return kPlanHandle;
    default:
      return 0;
  }
}

struct Choice {
  Planner planner{};
  std::vector<void*> devices;  // descriptors or handles, one a device; empty without a library
  bool by_handle = false;      // which of the two
  std::string planned_by = "none";
  int version = 0;
  std::string reason;  // why it is not the better one
};

void add_reason(Choice& choice, const std::string& reason) {
  choice.reason += (choice.reason.empty() ? "" : "; ") + reason;
}

// Describes all devices to a library; false when it refuses one: its error names the member of the JSON text that it
// misses.
bool describe_devices(Helper& helper, Choice& choice) {
  std::vector<void*> made;
  for (const Device& device : machine().devices) {
    void* properties = nullptr;
    helper.create(kDeviceProperties, &properties);
    helper.set(properties, kDeviceJson, kCharType, static_cast<std::int64_t>(device.cudnn.size() + 1),
               device.cudnn.c_str());
    if (helper.finalize(properties) != kSuccess) {
      add_reason(choice, "the description of " + device.name + " was refused: " + helper.last_error());
      return false;
    }
    made.push_back(properties);
  }
  choice.devices = made;
  return true;
}

// The same through handles, which older libraries take devices from.
bool describe_handles(Helper& helper, Choice& choice) {
  std::vector<void*> made;
  for (const Device& device : machine().devices) {
    void* handle = helper.handle(device.cudnn);
    if (handle == nullptr) {
      add_reason(
          choice,
          std::string("cuDNN ").append(std::to_string(helper.version())).append(" cannot plan without a device"));
      return false;
    }
    made.push_back(handle);
  }
  choice.devices = made;
  choice.by_handle = true;
  return true;
}

bool choose(Choice& choice, const std::string& library, const char* planned_by) {
  auto* helper = new Helper(library);  // never destroyed: threads outlive exit handlers
  if (helper->version() == 0) {
    add_reason(choice, library + ": " + helper->failure());
    return false;
  }
  const bool deviceless = helper->version() >= kFirstDeviceless;
  if (!(deviceless ? describe_devices(*helper, choice) : describe_handles(*helper, choice))) return false;
  chosen = helper;
  choice.planner = helper_planner();
  choice.planned_by = planned_by;
  choice.version = helper->version();
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

Choice make_choice() {
  Choice choice;
  bool found = !machine().cudnn_library.empty() && choose(choice, machine().cudnn_library, "named");
  if (!found) found = choose(choice, library_path(), "bundled");
  if (!found) choice.planner = bare_planner();
  write_down(choice);
  return choice;
}

const Choice& choice() {
  static const auto* made = new Choice(make_choice());
  return *made;
}

}  // namespace

const Planner& planner() {
  return choice().planner;
}

void describe_device(void* descriptor, int type, int device) {
  const Choice& made = choice();
  const auto number = static_cast<std::size_t>(device);
  if (number >= made.devices.size()) return;
  const int attribute = made.by_handle ? handle_attribute(type) : properties_attribute(type);
  const int kind = made.by_handle ? kHandleType : kDescriptorType;
  if (attribute != 0) made.planner.set(descriptor, attribute, kind, 1, &made.devices[number]);
}

}  // namespace xmem::phantom::cudnn
