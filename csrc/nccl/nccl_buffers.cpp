#include "nccl/nccl_buffers.hpp"

#include <algorithm>

namespace xmem::nccl {
namespace {

constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kSimpleBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kLl128Bytes = 120 * 640 * 8 * 8;  // elements a thread x threads x steps x 8 bytes
constexpr std::uint64_t kLlBytes = 8 * 512 * 8 * 16;      // lines a thread x threads x steps x 16 bytes
constexpr std::uint64_t kNvlinkChannels = 24;
constexpr std::uint64_t kFarPeerChannels = 2;
constexpr std::uint64_t kSharedBytes = std::uint64_t{16} << 17;    // steps x chunk
constexpr std::uint64_t kMulticastBytes = std::uint64_t{8} << 17;  // steps x chunk
constexpr std::uint64_t kPeerBytes = 512;                          // ncclDevChannelPeer
constexpr int kHopper = 90, kBlackwell = 100;

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::uint64_t channels(const NcclCard& card, const NcclSettings& settings, const NcclRanks& ranks) {
  std::uint64_t count = kNvlinkChannels;
  if (!ranks.on_one_server()) {
    count = 2 * static_cast<std::uint64_t>(ranks.here);
    if (card.capability >= kHopper && count < 16) count *= 2;
  }
  if (settings.most_channels > 0) count = std::min(count, settings.most_channels);
  return std::max(count, settings.least_channels);
}

std::uint64_t power_of_two_from(std::uint64_t count) {
  std::uint64_t power = 1;
  while (power < count) power *= 2;
  return power;
}

// The buffers of connections.
struct Buffers {
  std::uint64_t near, far;

  explicit Buffers(const NcclSettings& settings) {
    const std::uint64_t simple = settings.buffer_bytes > 0 ? settings.buffer_bytes : kSimpleBytes;
    near = whole_pages(simple + kLl128Bytes + kLlBytes) + kPageBytes;
    far = whole_pages(simple + kLl128Bytes);
  }
};

// Of `channels`, each enters and leaves a server at one of its ranks.
std::uint64_t ring_bytes(std::uint64_t channels, const NcclRanks& ranks, const Buffers& buffers) {
  if (ranks.on_one_server()) return channels * buffers.near;
  const std::uint64_t leaving = channels / static_cast<std::uint64_t>(ranks.here);
  return (channels - leaving) * buffers.near + 2 * leaving * buffers.far;
}

std::uint64_t tree_bytes(std::uint64_t channels, const NcclRanks& ranks, const Buffers& buffers) {
  if (ranks.all <= 2) return 0;
  if (ranks.on_one_server()) return channels * buffers.near;
  const std::uint64_t leaving = channels / static_cast<std::uint64_t>(ranks.here);
  return (channels - leaving) * buffers.near + 4 * leaving * buffers.far;
}

std::uint64_t multicast_bytes(const NcclCard& card, const NcclRanks& ranks) {
  if (!ranks.on_one_server() || ranks.all <= 2 || card.capability < kHopper) return 0;
  const std::uint64_t channels = card.capability >= kBlackwell ? 24 : 16;
  return channels * 2 * kMulticastBytes * static_cast<std::uint64_t>(ranks.all);
}

std::uint64_t near_peer_bytes(std::uint64_t channels, const NcclRanks& ranks, const Buffers& buffers) {
  return (ranks.on_one_server() ? power_of_two_from(channels) : kFarPeerChannels) * buffers.near;
}

}  // namespace

// Server cards, in the form that NVLink switches or bridges connect.
NcclCard nccl_card(int capability, const std::string& name) {
  const bool server =
      capability == 70 || capability == 80 || capability == 90 || capability == 100 || capability == 103;
  return {capability, server && name.find("PCI") == std::string::npos};
}

std::uint64_t nccl_bytes(const NcclCard& card, const NcclSettings& settings, const NcclRanks& ranks, NcclPart part) {
  if (ranks.all < 2 || ranks.here < 1 || !card.has_nvlink) return 0;
  const std::uint64_t count = channels(card, settings, ranks);
  const Buffers buffers(settings);
  switch (part) {
    case NcclPart::table:
      return count * static_cast<std::uint64_t>(ranks.all) * kPeerBytes / kPageBytes * kPageBytes;
    case NcclPart::ring:
      return ring_bytes(count, ranks, buffers);
    case NcclPart::tree:
      return tree_bytes(count, ranks, buffers);
    case NcclPart::multicast:
      return multicast_bytes(card, ranks);
    case NcclPart::near_peer:
      return near_peer_bytes(count, ranks, buffers);
    case NcclPart::far_peers:
      return whole_pages(2 * power_of_two_from(count) * kSharedBytes);
  }
  return 0;
}

}  // namespace xmem::nccl
