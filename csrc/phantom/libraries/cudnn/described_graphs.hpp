// What a plan computes, for the launch log: followed from the tensors to the operations, the graph and the plan, while
// the caller describes them.
#pragma once

#include <cstdint>
#include <string>

namespace xmem::phantom::cudnn {

// A caller set an attribute of a descriptor of this type.
void follow_attribute(void* descriptor, int descriptor_type, int attribute, int type, std::int64_t count,
                      const void* elements);

// A descriptor was filled in from another: an engine of a graph, say.
void follow_copy(void* from, void* to);

void forget_graph(void* descriptor);

// JSON: {"operations": [...], "engine": {...}} of a plan; empty where it was not followed. The engine is cuDNN's
// number of the implementation that its heuristics chose, with the knobs that they set: which kernel it is.
std::string problem_of_plan(void* plan);

// The same of a call that is no graph: one operation, the tensor that it reads, and more members of it.
std::string problem_of_call(const char* operation, const void* tensor, const std::string& members);

}  // namespace xmem::phantom::cudnn
