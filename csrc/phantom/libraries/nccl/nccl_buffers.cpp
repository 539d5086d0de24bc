#include "libraries/nccl/nccl_buffers.hpp"

#include <algorithm>
#include <cstdlib>

#include "memory/address_space.hpp"

namespace xmem::phantom {
namespace {

constexpr std::uint64_t kSimpleBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kLl128Bytes = 120 * 640 * 8 * 8;  // elements a thread x threads x steps x 8 bytes
constexpr std::uint64_t kLlBytes = 8 * 512 * 8 * 16;      // lines a thread x threads x steps x 16 bytes
constexpr std::uint64_t kNvlinkChannels = 24;
constexpr std::uint64_t kFarPeerChannels = 2;
constexpr std::uint64_t kSharedBytes = std::uint64_t{16} << 17;    // steps x chunk
constexpr std::uint64_t kMulticastBytes = std::uint64_t{8} << 17;  // steps x chunk
constexpr std::uint64_t kPeerBytes = 512;                          // ncclDevChannelPeer
constexpr int kHopper = 90, kBlackwell = 100;

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  const long long value = text == nullptr ? -1 : std::atoll(text);
  return value > 0 ? static_cast<std::uint64_t>(value) : otherwise;
}

// Server cards, in the form that NVLink switches or bridges connect.
bool has_nvlink(const Device& device) {
  const int capability = device.capability();
  const bool server =
      capability == 70 || capability == 80 || capability == 90 || capability == 100 || capability == 103;
  return server && device.name.find("PCI") == std::string::npos;
}

std::uint64_t channels(const Device& device, const NcclRanks& ranks) {
  std::uint64_t count = kNvlinkChannels;
  if (!ranks.on_one_server()) {
    count = 2 * static_cast<std::uint64_t>(ranks.here);
    if (device.capability() >= kHopper && count < 16) count *= 2;
  }
  count = std::min(count, setting("NCCL_MAX_NCHANNELS", count));
  return std::max(count, setting("NCCL_MIN_NCHANNELS", count));
}

std::uint64_t power_of_two_from(std::uint64_t count) {
  std::uint64_t power = 1;
  while (power < count) power *= 2;
  return power;
}

std::uint64_t simple_bytes() {
  return setting("NCCL_BUFFSIZE", kSimpleBytes);
}

std::uint64_t near_bytes() {
  return whole_pages(simple_bytes() + kLl128Bytes + kLlBytes) + kPageBytes;
}

std::uint64_t far_bytes() {
  return whole_pages(simple_bytes() + kLl128Bytes);
}

// Of `channels`, each enters and leaves a server at one of its ranks.
std::uint64_t ring_bytes(std::uint64_t channels, const NcclRanks& ranks) {
  if (ranks.on_one_server()) return channels * near_bytes();
  const std::uint64_t leaving = channels / static_cast<std::uint64_t>(ranks.here);
  return (channels - leaving) * near_bytes() + 2 * leaving * far_bytes();
}

std::uint64_t tree_bytes(std::uint64_t channels, const NcclRanks& ranks) {
  if (ranks.all <= 2) return 0;
  if (ranks.on_one_server()) return channels * near_bytes();
  const std::uint64_t leaving = channels / static_cast<std::uint64_t>(ranks.here);
  return (channels - leaving) * near_bytes() + 4 * leaving * far_bytes();
}

std::uint64_t multicast_bytes(const Device& device, const NcclRanks& ranks) {
  if (!ranks.on_one_server() || ranks.all <= 2 || device.capability() < kHopper) return 0;
  const std::uint64_t channels = device.capability() >= kBlackwell ? 24 : 16;
  return channels * 2 * kMulticastBytes * static_cast<std::uint64_t>(ranks.all);
}

std::uint64_t near_peer_bytes(std::uint64_t channels, const NcclRanks& ranks) {
  return (ranks.on_one_server() ? power_of_two_from(channels) : kFarPeerChannels) * near_bytes();
}

}  // namespace

std::uint64_t nccl_bytes(const Device& device, const NcclRanks& ranks, NcclPart part) {
  if (ranks.all < 2 || !has_nvlink(device)) return 0;
  const std::uint64_t count = channels(device, ranks);
  switch (part) {
    case NcclPart::table:
      return count * static_cast<std::uint64_t>(ranks.all) * kPeerBytes / kPageBytes * kPageBytes;
    case NcclPart::ring:
      return ring_bytes(count, ranks);
    case NcclPart::tree:
      return tree_bytes(count, ranks);
    case NcclPart::multicast:
      return multicast_bytes(device, ranks);
    case NcclPart::near_peer:
      return near_peer_bytes(count, ranks);
    case NcclPart::far_peers:
      return whole_pages(2 * power_of_two_from(count) * kSharedBytes);
  }
  return 0;
}

}  // namespace xmem::phantom
