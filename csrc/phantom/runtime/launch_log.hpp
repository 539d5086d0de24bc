// What was launched, in order, for whoever asks about occupancy: kernels with their shape and what their code needs,
// and calls of libraries, whose kernels nobody sees. Nothing is written down, and nothing read for it, until somebody
// asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "surface.hpp"

namespace xmem::phantom {

struct LaunchShape;

namespace launch_log {
extern std::atomic<bool> open;
}

inline bool logs_launches() noexcept {
  return launch_log::open.load(std::memory_order_relaxed);
}

// A kernel on a stream; one that is captured counts whenever its graph is launched.
void log_kernel(const void* handle, const LaunchShape& shape, void* stream, int capability);

// A function of a library was called and launched work on a stream. `problem` is a JSON object with what it computes;
// empty: its name says all that is known. Only made where `logs_launches`.
void called(Function function, void* stream, const std::string& problem = {});

// The work of a graph: rows of the log's table, in order.
void log_graph(const std::vector<std::uint32_t>& work, void* stream);

// The handle may be given to another kernel from now on.
void forget_in_log(const void* handle);

}  // namespace xmem::phantom
