// The memory of graphs that allocate by themselves (allocation and free nodes). A device keeps one pool for them: a
// launch takes what its graph needs, and what a free node gives back stays in the pool for the next launch, until it
// is trimmed (CUDA C++ Programming Guide 13.0, "Graph Memory Nodes").
#pragma once

#include <cstdint>
#include <vector>

namespace xmem::phantom {

// A node: an allocation of so many bytes, or, with 0, the free of one.
struct MemoryNode {
  std::uint64_t address;
  std::uint64_t size;
};

// Launches the memory nodes of a graph, in the order in which they were added. kOutOfMemory if the device has no more.
int launch_memory(const std::vector<MemoryNode>& nodes);

// Gives back what no graph holds.
void trim_graph_memory(int device);

}  // namespace xmem::phantom
