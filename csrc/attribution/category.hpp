// What a block holds. Named tensors decide; for the rest, where it was born and where it died.
#pragma once

#include "attribution/attribute.hpp"

namespace xmem::attribution {

// Fills `category` and `tensor` of an otherwise complete attribution. `step_end` is the end of the optimizer step that
// each block is born in.
void categorize(const blocks::BlockTable& blocks, const NamedTensors& tensors, std::span<const Nanoseconds> step_end,
                Attribution& attribution);

}  // namespace xmem::attribution
