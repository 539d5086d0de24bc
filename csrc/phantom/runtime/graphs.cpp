// CUDA graphs: a captured graph keeps its private pool's memory, which is the caller's; launching one does nothing but
// what its allocation nodes do.
#include <cstddef>
#include <memory>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "memory/contents.hpp"
#include "runtime/graph_memory.hpp"
#include "runtime/launch_log.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

using GraphHandle = std::shared_ptr<Graph>;

GraphHandle& graph_of(void* handle) {
  return *static_cast<GraphHandle*>(handle);
}

int instantiate(void** executable, void* graph) {
  *executable = new GraphHandle(graph_of(graph));
  return kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cudaGraphCreate(void** graph, unsigned) {
  note(Function::cudaGraphCreate);
  *graph = new GraphHandle(std::make_shared<Graph>());
  return kSuccess;
}

PHANTOM_EXPORT int cudaGraphDestroy(void* graph) {
  note(Function::cudaGraphDestroy);
  delete static_cast<GraphHandle*>(graph);
  return kSuccess;
}

// The third argument of CUDA 12's (flags) and the others of CUDA 11's (error log) change nothing here.
PHANTOM_EXPORT int cudaGraphInstantiate(void** executable, void* graph) {
  note(Function::cudaGraphInstantiate);
  return instantiate(executable, graph);
}

PHANTOM_EXPORT int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  note(Function::cudaGraphInstantiateWithFlags);
  return instantiate(executable, graph);
}

PHANTOM_EXPORT int cudaGraphExecDestroy(void* executable) {
  note(Function::cudaGraphExecDestroy);
  delete static_cast<GraphHandle*>(executable);
  return kSuccess;
}

PHANTOM_EXPORT int cudaGraphLaunch(void* executable, void* stream) {
  note(Function::cudaGraphLaunch);
  if (const int error = launch_memory(graph_of(executable)->memory()); error != kSuccess) return fail(error);
  launched(stream);
  if (logs_launches()) log_graph(graph_of(executable)->work, stream);
  return kSuccess;
}

// Nodes have no content: they are numbered from 1.
PHANTOM_EXPORT int cudaGraphGetNodes(void* graph, void** nodes, std::size_t* count) {
  note(Function::cudaGraphGetNodes);
  const std::size_t known = graph_of(graph)->nodes.load();
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < known ? reinterpret_cast<void*>(i + 1) : nullptr;
  }
  *count = known;
  return kSuccess;
}

PHANTOM_EXPORT int cudaGraphGetRootNodes(void* graph, void** nodes, std::size_t* count) {
  note(Function::cudaGraphGetRootNodes);
  const std::size_t known = graph_of(graph)->nodes.load() > 0 ? 1 : 0;
  if (nodes != nullptr && *count > 0) nodes[0] = known > 0 ? reinterpret_cast<void*>(1) : nullptr;
  *count = known;
  return kSuccess;
}
