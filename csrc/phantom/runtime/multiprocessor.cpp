#include "runtime/multiprocessor.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>

namespace xmem::phantom {
namespace {

constexpr int kWarp = 32;
constexpr int kRegisterUnit = 256;  // a warp's registers are given in such units

constexpr int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

// Parts of a multiprocessor, each with its share of the registers.
int partitions(const Device& device) {
  return device.capability() == 60 ? 2 : 4;
}

int shared_unit(const Device& device) {
  return device.attribute(kComputeCapabilityMajor) >= 8 ? 128 : 256;
}

int warp_registers(const KernelCode& code) {
  return std::max(round_up(code.registers * kWarp, kRegisterUnit), 1);
}

int warps_by_registers(const Device& device, const KernelCode& code) {
  const int parts = partitions(device);
  return device.attribute(kMaxRegistersPerMultiprocessor) / parts / warp_registers(code) * parts;
}

// A launch is refused as if the warps of a block were dealt evenly to the parts.
bool block_fits(const Device& device, const KernelCode& code, int warps) {
  return round_up(warps, partitions(device)) * warp_registers(code) <= device.attribute(kMaxRegistersPerBlock);
}

}  // namespace

int resident_blocks(const Device& device, const KernelCode& code, int block_size, std::size_t dynamic_bytes) {
  if (block_size > device.attribute(kMaxThreadsPerBlock)) return 0;
  if (code.most_threads > 0 && block_size > code.most_threads) return 0;
  const int warps = (block_size + kWarp - 1) / kWarp;
  if (!block_fits(device, code, warps)) return 0;
  const auto shared_bytes = static_cast<std::int64_t>(dynamic_bytes) + code.static_shared_bytes;
  if (shared_bytes > device.attribute(kMaxSharedMemoryPerBlockOptin)) return 0;
  const int taken =
      round_up(static_cast<int>(shared_bytes) + device.attribute(kReservedSharedMemoryPerBlock), shared_unit(device));
  return std::min({device.attribute(kMaxThreadsPerMultiProcessor) / kWarp / warps,
                   device.attribute(kMaxBlocksPerMultiprocessor), warps_by_registers(device, code) / warps,
                   taken > 0 ? device.attribute(kMaxSharedMemoryPerMultiprocessor) / taken : INT_MAX});
}

int dynamic_shared_bytes_of(const Device& device, const KernelCode& code, int blocks) {
  const int unit = shared_unit(device);
  const int share = device.attribute(kMaxSharedMemoryPerMultiprocessor) / blocks / unit * unit;
  const int free = share - device.attribute(kReservedSharedMemoryPerBlock);
  return std::max(std::min(free, device.attribute(kMaxSharedMemoryPerBlockOptin)) - code.static_shared_bytes, 0);
}

int most_threads(const Device& device, const KernelCode& code) {
  int threads = device.attribute(kMaxThreadsPerBlock);
  while (threads > kWarp && !block_fits(device, code, threads / kWarp)) threads -= kWarp;
  return code.most_threads > 0 ? std::min(threads, code.most_threads) : threads;
}

BeyondLimits beyond_limits(const Device& device, const Dim3& grid, const Dim3& block,
                           std::size_t dynamic_shared_bytes) {
  const auto most = [&](DeviceAttribute which) { return static_cast<unsigned>(device.attribute(which)); };
  if (grid.x > most(kMaxGridDimX) || grid.y > most(kMaxGridDimY) || grid.z > most(kMaxGridDimZ)) {
    return BeyondLimits::kShape;
  }
  // Each of the three is within its own limit before they are multiplied.
  if (block.x > most(kMaxBlockDimX) || block.y > most(kMaxBlockDimY) || block.z > most(kMaxBlockDimZ) ||
      block.x * block.y * block.z > most(kMaxThreadsPerBlock)) {
    return BeyondLimits::kShape;
  }
  if (dynamic_shared_bytes > most(kMaxSharedMemoryPerBlockOptin)) return BeyondLimits::kSharedMemory;
  return BeyondLimits::kNone;
}

}  // namespace xmem::phantom
