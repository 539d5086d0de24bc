// The two levels: a framework allocator asks a device for memory. Neither has heard of traces.
//
// A model of these concepts is an ordinary value; the static_assert that it is one stands beside its definition.
#pragma once

#include <concepts>
#include <optional>

#include "allocators/ids.hpp"
#include "base/units.hpp"

namespace xmem::allocators {

// Memory of one device, as the CUDA driver gives it out: cudaMalloc and cudaFree, and for expandable segments
// address ranges (reserve, unreserve) into which physical pages are mapped.
template <class Device>
concept DeviceMemory = requires(Device device, const Device view, Bytes address, Bytes size) {
  { device.allocate(size) } -> std::same_as<std::optional<Bytes>>;  // the address, or out of memory
  { device.release(address, size) } -> std::same_as<void>;
  { device.reserve(size) } -> std::same_as<Bytes>;
  { device.unreserve(address, size) } -> std::same_as<void>;
  { device.map(address, size) } -> std::same_as<bool>;  // false: out of memory, nothing was mapped
  { device.unmap(address, size) } -> std::same_as<void>;
  { view.free_bytes() } -> std::same_as<Bytes>;
  { view.total_bytes() } -> std::same_as<Bytes>;
};

// What a deep-learning framework puts between a program and a device. To add one: write the class, assert the concept
// beside it, add it to tests/cpp/allocators/test_conformance.cpp, which holds every model to the rules below, and give
// it a number in simulation/gauge_replay.hpp. Its twin for slow allocators in Python is
// xmem.simulation.bounding.Allocator.
//
// - allocate: `size` is above 0. A handle is unique among the living; it may be used again once its block was freed.
//   After a failure all living blocks are as they were, and the allocator goes on to work.
// - free: exactly once for each handle. Memory may be kept for later requests.
// - empty_cache: gives back what no block needs. An allocator whose framework has no such call does nothing.
// - Gauges, in bytes: requested (as asked) <= allocated (as rounded) <= active (also what waits for another stream) <=
//   reserved (held of the device). What waits still counts as requested. Without living blocks the first three are 0.
// - Same calls, same answers: nothing depends on time, on chance or on addresses of this process.
// - check_invariants: throws std::logic_error naming the first rule of its own that is broken. May walk everything.
template <class Allocator>
concept FrameworkAllocator =
    requires(Allocator allocator, const Allocator view, Bytes size, StreamHandle stream, BlockHandle block) {
      { allocator.allocate(size, stream) } -> std::same_as<BlockHandle>;  // none: out of memory at both levels
      { allocator.free(block) } -> std::same_as<void>;
      { allocator.empty_cache() } -> std::same_as<void>;
      { view.allocated_bytes() } -> std::same_as<Bytes>;
      { view.active_bytes() } -> std::same_as<Bytes>;
      { view.reserved_bytes() } -> std::same_as<Bytes>;
      { view.requested_bytes() } -> std::same_as<Bytes>;
      { view.check_invariants() } -> std::same_as<void>;
    };

}  // namespace xmem::allocators
