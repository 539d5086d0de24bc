// NCCL's watchdog: a thread of PyTorch that looks every 100 ms which collectives are over, and then lets go of what
// they use. A GPU needs milliseconds for an iteration that takes seconds here, so this thread would look far more often
// in an iteration than it does beside a GPU. Python says up to which event it may see that the work is over.
#pragma once

#include <cstdint>

namespace xmem::phantom {

// The number of an event that is recorded now: they count from 1.
std::uint64_t number_of_event();

// Whether the calling thread is one.
bool is_watchdog();

// Whether a watchdog, which asks now, may not see yet that this event is over. Nothing is hidden for long: a watchdog
// ends a process whose collectives are never over.
bool is_hidden_from_watchdogs(std::uint64_t event_number, std::int64_t age_ns);

}  // namespace xmem::phantom
