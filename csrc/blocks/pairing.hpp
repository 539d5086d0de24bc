// Pairs the allocations and frees of a trace into blocks, by device and address, in order of time (VeritasEst,
// algorithm 1).
//
// Relied on: an address is live at most once per device. Where the trace breaks that (a lost free), the older block
// ends and the fault is counted. Old traces without addresses are paired by size, youngest first: right for nested
// temporaries, a guess for the rest. Cost: one hash lookup per instant.
#pragma once

#include "blocks/block_table.hpp"
#include "trace/diagnostics.hpp"
#include "trace/event_table.hpp"

namespace xmem::blocks {

BlockTable pair_blocks(const trace::MemoryTable& memory, trace::Diagnostics& diagnostics);

}  // namespace xmem::blocks
