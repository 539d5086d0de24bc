// Graphs that are built node by node. A node is what a capture of the same work would have added, so it is captured
// here. Nodes run in the order in which they were added, whatever they depend on: nothing is computed, and only the
// peak of what allocation nodes hold could differ.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"
#include "runtime/kernels.hpp"
#include "runtime/launch_log.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

// cudaKernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v1, and the beginning of _v2
struct KernelNode {
  const void* function;
  Dim3 grid;
  Dim3 block;
  unsigned dynamic_shared_bytes;
  void** arguments;
  void** extra;
};
static_assert(sizeof(KernelNode) == 56);

// CUDA_KERNEL_NODE_PARAMS_v2: a kernel without a context may stand in for the function.
struct DriverKernelNode {
  KernelNode node;
  const void* kernel;
  void* context;
};

// cudaMemsetParams, CUDA_MEMSET_NODE_PARAMS
struct MemsetNode {
  void* target;
  std::size_t pitch;
  unsigned value;
  unsigned element_size;
  std::size_t width;
  std::size_t height;
};

// cudaMemAllocNodeParams, CUDA_MEM_ALLOC_NODE_PARAMS: properties of a pool with a location in them, who may access it,
// the size, and the address, which is the answer.
struct AllocationNode {
  int allocation_type;
  int handle_types;
  int location_type;
  int device;
  unsigned char other_properties[72];
  const void* access;
  std::size_t access_count;
  std::size_t size;
  void* address;
};
static_assert(offsetof(AllocationNode, access) == 88);

Graph& graph_of(void* handle) {
  return **static_cast<std::shared_ptr<Graph>*>(handle);
}

// Nodes are numbered from 1, as for those who list them.
void name_node(void** node, void* graph) {
  if (node != nullptr) *node = reinterpret_cast<void*>(graph_of(graph).nodes.load());
}

int add_plain(void** node, void* graph) {
  graph_of(graph).nodes.fetch_add(1);
  name_node(node, graph);
  return kSuccess;
}

int add_kernel(void** node, void* graph, const KernelNode& what, const void* kernel, decltype(launch_kernel)& launch) {
  const IntoGraph into(*static_cast<std::shared_ptr<Graph>*>(graph));
  const LaunchShape shape{what.grid, what.block, what.dynamic_shared_bytes, 0};
  const int error = launch(kernel, shape, into.stream(), what.arguments);
  if (error == kSuccess) name_node(node, graph);
  return error;
}

int add_memset(void** node, void* graph, const MemsetNode& what) {
  for (std::size_t row = 0; row < what.height; ++row) {
    char* begin = static_cast<char*>(what.target) + row * what.pitch;
    if (device_of(begin) >= 0) device_cleared(begin, what.width * what.element_size);
  }
  return add_plain(node, graph);
}

int add_allocation(void** node, void* graph, AllocationNode& what) {
  void* address = nullptr;
  if (const int error = reserve_addresses(what.device, what.size, kPageBytes, &address); error != kSuccess)
    return error;
  graph_of(graph).add_memory({reinterpret_cast<std::uint64_t>(address), what.size});
  what.address = address;
  return add_plain(node, graph);
}

int add_free(void** node, void* graph, const void* address) {
  if (device_of(address) < 0) return kInvalidValue;
  graph_of(graph).add_memory({reinterpret_cast<std::uint64_t>(address), 0});
  return add_plain(node, graph);
}

int add_child(void** node, void* graph, void* child_handle) {
  const Graph& child = graph_of(child_handle);
  if (logs_launches()) {
    const IntoGraph into(*static_cast<std::shared_ptr<Graph>*>(graph));
    log_graph(child.work, into.stream());
  }
  for (const MemoryNode& memory : child.memory()) graph_of(graph).add_memory(memory);
  return add_plain(node, graph);
}

int add_event(void** node, void* graph, void* event) {
  if (const int error = record_into_graph(event); error != kSuccess) return error;
  return add_plain(node, graph);
}

}  // namespace

PHANTOM_EXPORT int cudaGraphAddEmptyNode(void** node, void* graph, const void*, std::size_t) {
  note(Function::cudaGraphAddEmptyNode);
  return add_plain(node, graph);
}

PHANTOM_EXPORT int cudaGraphAddKernelNode(void** node, void* graph, const void*, std::size_t, const KernelNode* what) {
  note(Function::cudaGraphAddKernelNode);
  return fail(add_kernel(node, graph, *what, what->function, launch_kernel));
}

PHANTOM_EXPORT int cuGraphAddKernelNode(void** node, void* graph, const void*, std::size_t, const KernelNode* what) {
  note(Function::cuGraphAddKernelNode);
  return add_kernel(node, graph, *what, what->function, launch_by_driver);
}

PHANTOM_EXPORT int cuGraphAddKernelNode_v2(void** node, void* graph, const void*, std::size_t,
                                           const DriverKernelNode* what) {
  note(Function::cuGraphAddKernelNode_v2);
  const void* kernel = what->node.function != nullptr ? what->node.function : what->kernel;
  return add_kernel(node, graph, what->node, kernel, launch_by_driver);
}

PHANTOM_EXPORT int cudaGraphAddMemsetNode(void** node, void* graph, const void*, std::size_t, const MemsetNode* what) {
  note(Function::cudaGraphAddMemsetNode);
  return add_memset(node, graph, *what);
}

PHANTOM_EXPORT int cudaGraphAddMemcpyNode1D(void** node, void* graph, const void*, std::size_t, void*, const void*,
                                            std::size_t, int) {
  note(Function::cudaGraphAddMemcpyNode1D);
  return add_plain(node, graph);
}

PHANTOM_EXPORT int cudaGraphAddEventRecordNode(void** node, void* graph, const void*, std::size_t, void* event) {
  note(Function::cudaGraphAddEventRecordNode);
  return fail(add_event(node, graph, event));
}

PHANTOM_EXPORT int cudaGraphAddMemAllocNode(void** node, void* graph, const void*, std::size_t, AllocationNode* what) {
  note(Function::cudaGraphAddMemAllocNode);
  return fail(add_allocation(node, graph, *what));
}

PHANTOM_EXPORT int cudaGraphAddMemFreeNode(void** node, void* graph, const void*, std::size_t, void* address) {
  note(Function::cudaGraphAddMemFreeNode);
  return fail(add_free(node, graph, address));
}

PHANTOM_EXPORT int cudaGraphAddChildGraphNode(void** node, void* graph, const void*, std::size_t, void* child) {
  note(Function::cudaGraphAddChildGraphNode);
  return add_child(node, graph, child);
}
