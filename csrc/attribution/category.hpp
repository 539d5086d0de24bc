// What a block holds. Named tensors decide; for the rest, where it was born and where it died.
#pragma once

#include "attribution/attribute.hpp"

namespace xmem::attribution {

// Fills `category` and `tensor` of an otherwise complete attribution.
void categorize(const blocks::BlockTable& blocks, const NamedTensors& tensors, Attribution& attribution);

}  // namespace xmem::attribution
