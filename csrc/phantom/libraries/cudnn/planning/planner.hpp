// Who answers the graph API ("backend API"): the library that finds the engines for an operation graph, ranks them and
// says what workspace each needs. From 9.8 on cuDNN does so for a device that is only described; 9.0 to 9.7 do for a
// handle that describes one (cudnn_described_handle.hpp).
//   named    the one that the machine file names
//   bundled  the cuDNN of this process
//   none     plans without workspace
// Either library answers in a process of its own (cudnn_helper.hpp). The choice is made once, and written to the file
// `cudnn` in $XMEM_PHANTOM.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries/cudnn/planning/protocol.hpp"

namespace xmem::phantom::cudnn {

// Of the graph API, in cuDNN's numbers.
enum DescriptorType : int {
  kEngine = 2,
  kEngineConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kGraph = 15,
  kVariantPack = 16,
  kDeviceProperties = 38,
};
enum Attribute : int {
  kHeuristicsResults = 202,
  kHeuristicsDevice = 204,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kPlanDevice = 407,
  kGraphHandle = 800,
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
};

const Planner& planner();

// Tells a descriptor of this type, before it is finalized, for which device of the machine it is.
void describe_device(void* descriptor, int type, int device);

// Plans without workspace, one for every graph.
const Planner& bare_planner();

}  // namespace xmem::phantom::cudnn
