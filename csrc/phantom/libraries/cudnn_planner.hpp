// Who answers the graph API ("backend API"): the library that finds the engines for an operation graph, ranks them and
// says what workspace each needs. From 9.8 on cuDNN does so for a device that is only described.
//   bundled  the cuDNN of this process, where it is new enough
//   helper   a newer one in a process of its own, where the machine file names it
//   none     plans without workspace
// The choice is made once and written to the file `cudnn` in $XMEM_PHANTOM.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries/cudnn_protocol.hpp"

namespace xmem::phantom::cudnn {

// Of the graph API, in cuDNN's numbers.
enum DescriptorType : int {
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kVariantPack = 16,
  kDeviceProperties = 38,
};
enum Attribute : int {
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  kGraphEngineCount = 802,
  kEngineDevice = 1307,
  kDeviceJson = 2702,
};

// The functions of the graph API that need no handle, with cuDNN's own signatures.
struct Planner {
  int (*create)(int type, void** descriptor);
  int (*destroy)(void* descriptor);
  int (*set)(void* descriptor, int attribute, int type, std::int64_t count, const void* elements);
  int (*get)(void* descriptor, int attribute, int type, std::int64_t room, std::int64_t* count, void* elements);
  int (*finalize)(void* descriptor);
  void (*last_error)(char* text, std::size_t size);
};

const Planner& planner();

// The planner's description of a device of the machine, null where it needs none.
void* device_properties(int device);

// Plans without workspace, one for every graph.
const Planner& bare_planner();

}  // namespace xmem::phantom::cudnn
