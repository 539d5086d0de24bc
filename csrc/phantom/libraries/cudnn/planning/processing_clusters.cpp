#include "libraries/cudnn/planning/processing_clusters.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "libraries/cudnn/planning/device_description.hpp"

namespace xmem::phantom::cudnn {
namespace {

constexpr int kMostClusters = 24;
using Sizes = std::array<std::int32_t, kMostClusters>;

// The list of sizes follows the versions of device and driver, about 120 bytes into the descriptor, which is longer
// than this (9.8, 9.19 and 9.20).
constexpr std::size_t kSearchedBytes = 384;

std::int32_t* find_sizes(void* properties, std::int32_t version, std::int32_t driver) {
  auto* const bytes = static_cast<char*>(properties);
  const std::array<std::int32_t, 2> before{version, driver};
  for (std::size_t at = 0; at + sizeof before + sizeof(Sizes) <= kSearchedBytes; at += sizeof version) {
    if (std::memcmp(bytes + at, before.data(), sizeof before) == 0) {
      return reinterpret_cast<std::int32_t*>(bytes + at + sizeof before);
    }
  }
  return nullptr;
}

// Evenly, but by twos, as multiprocessors come: which of them a chip lacks differs from one to the next. Empty (zeros)
// where they do not fit.
Sizes spread(std::int32_t multiprocessors, std::int32_t most) {
  Sizes sizes{};
  const std::int32_t clusters = (multiprocessors + most - 1) / most;
  if (clusters > kMostClusters) return sizes;
  const std::int32_t pairs = multiprocessors / 2;
  for (std::int32_t i = 0; i < clusters; ++i) {
    sizes[static_cast<std::size_t>(i)] = 2 * (pairs / clusters + (i < pairs % clusters ? 1 : 0));
  }
  sizes[0] += multiprocessors % 2;
  return sizes;
}

}  // namespace

void add_processing_clusters(void* properties, const std::string& description) {
  std::int32_t multiprocessors = 0, version = 0, driver = 0;
  DeviceDescription from(description);
  from.read("multiProcessorCount", &multiprocessors);
  from.read("deviceVer", &version);
  from.read("driverVer", &driver);
  if (!from.complete() || multiprocessors < 1) return;
  std::int32_t* const found = find_sizes(properties, version, driver);
  if (found == nullptr) return;
  const bool single = found[0] > 1 && std::all_of(found + 1, found + kMostClusters, [](int size) { return size == 0; });
  if (!single) return;
  Sizes sizes{};
  const int known = from.read_list("processingClusters", sizes.data(), kMostClusters);
  if (known == 0) sizes = spread(multiprocessors, found[0]);
  if (sizes[0] > 0) std::copy(sizes.begin(), sizes.end(), found);
}

}  // namespace xmem::phantom::cudnn
