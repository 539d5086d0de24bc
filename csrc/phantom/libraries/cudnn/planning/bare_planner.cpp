// The graph API without a library behind it: descriptors keep what they are given, every graph has one engine without
// notes, and its plan needs no workspace. What PyTorch then runs is the smallest it could choose.
#include <cstddef>
#include <cstring>
#include <map>
#include <new>
#include <vector>

#include "libraries/cudnn/planning/planner.hpp"
#include "libraries/cudnn/status.hpp"

namespace xmem::phantom::cudnn {
namespace {

struct Values {
  std::int64_t count = 0;
  std::vector<unsigned char> bytes;
};

struct Descriptor {
  int type = 0;
  std::map<int, Values> attributes;
};

int create(int type, void** descriptor) {
  auto* made = new (std::nothrow) Descriptor{type, {}};
  *descriptor = made;
  return made != nullptr ? kSuccess : kInternalError;
}

int destroy(void* descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return kSuccess;
}

int set(void* descriptor, int attribute, int type, std::int64_t count, const void* elements) {
  if (descriptor == nullptr || count < 0) return kBadParam;
  const auto* first = static_cast<const unsigned char*>(elements);
  static_cast<Descriptor*>(descriptor)->attributes[attribute] = {
      count, {first, first + static_cast<std::size_t>(count) * element_bytes(type)}};
  return kSuccess;
}

int get(void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements) {
  if (descriptor == nullptr) return kBadParam;
  const auto& given = static_cast<Descriptor*>(descriptor)->attributes;
  std::int64_t known = 0;
  if (attribute == kHeuristicsResults || attribute == kConfigEngine || attribute == kPlanConfig) {
    known = 1;  // into the descriptor that the caller made for it, which needs nothing more
  } else if (attribute == kPlanWorkspace || attribute == kGraphEngineCount) {
    known = 1;
    const std::int64_t value = attribute == kGraphEngineCount ? 1 : 0;
    if (elements != nullptr && room > 0) std::memcpy(elements, &value, sizeof value);
  } else if (const auto found = given.find(attribute); found != given.end()) {
    known = found->second.count;
    const std::int64_t copied = known < room ? known : room;
    if (elements != nullptr && copied > 0) {
      std::memcpy(elements, found->second.bytes.data(), static_cast<std::size_t>(copied) * element_bytes(type));
    }
  }
  if (count != nullptr) *count = known;
  return kSuccess;
}

int finalize(void*) {
  return kSuccess;
}

}  // namespace

const Planner& bare_planner() {
  static constexpr Planner functions{create, destroy, set, get, finalize};
  return functions;
}

}  // namespace xmem::phantom::cudnn
