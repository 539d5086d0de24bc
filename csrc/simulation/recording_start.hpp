// The allocator before the first event of a recording that began in the middle of a run, worked out backwards from
// the segments after its last event.
//
// A trace gives requested bytes; how much slack an unsplit large block owned shows only where its right neighbour was
// in use at some moment. Elsewhere a block may come out up to 1 MiB short. Ages are lost: segments count in order of
// address.
#pragma once

#include "simulation/recording.hpp"

namespace xmem::simulation {

// Throws as check_recording does, and TraceError, with the event, when trace and segments do not belong together. Of
// `end`, check_state holds.
allocators::AllocatorState state_before(const Recording& recording, const allocators::AllocatorOptions& options,
                                        const allocators::AllocatorState& end);

}  // namespace xmem::simulation
