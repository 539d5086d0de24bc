// What the compiled code of a kernel says of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace xmem::phantom {

// One of a kernel, by its place.
struct Parameter {
  std::uint32_t number;
  std::uint32_t bytes;
};

struct KernelCode {
  int registers = 0;  // of a thread
  int static_shared_bytes = 0;
  int local_bytes = 0;     // of a thread: its stack, and what was spilled
  int constant_bytes = 0;  // that the program declared
  int most_threads = 0;    // of a block, as the program promises (__launch_bounds__); 0: nothing is promised
  int cluster_blocks =
      0;  // of a cluster, where that is fixed (__cluster_dims__); 0: no cluster, or chosen at the launch
};

// One that a code object has.
struct ListedKernel {
  std::string name;
  KernelCode code;
  bool parameters_known = false;
  std::vector<Parameter> parameters;
};

}  // namespace xmem::phantom
