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

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  const long long value = text == nullptr ? -1 : std::atoll(text);
  return value > 0 ? static_cast<std::uint64_t>(value) : otherwise;
}

// Server cards, in the form that NVLink switches or bridges connect.
bool has_nvlink(const Device& device) {
  const int capability = device.capability();
  const bool server = capability == 70 || capability == 80 || capability == 90 || capability == 100;
  return server && device.name.find("PCI") == std::string::npos;
}

}  // namespace

std::uint64_t nccl_buffer_bytes(const Device& device, int size) {
  if (size < 2 || !has_nvlink(device)) return 0;
  const std::uint64_t channels = std::min(kNvlinkChannels, setting("NCCL_MAX_NCHANNELS", kNvlinkChannels));
  const std::uint64_t connections = size == 2 ? 1 : 2;
  const std::uint64_t received = setting("NCCL_BUFFSIZE", kSimpleBytes) + kLl128Bytes + kLlBytes;
  return channels * connections * (whole_pages(received) + kPageBytes);
}

}  // namespace xmem::phantom
