#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "libraries/cudnn/planning/processing_clusters.hpp"
#include "testing.hpp"

using namespace xmem::phantom::cudnn;

namespace {

constexpr std::size_t kBefore = 30;  // numbers before the version of the device, as in cuDNN 9.19
using Sizes = std::vector<std::int32_t>;

std::string description(int multiprocessors, int version) {
  return "{\"warpSize\":32,\"multiProcessorCount\":" + std::to_string(multiprocessors) +
         ",\"deviceVer\":" + std::to_string(version) + ",\"driverVer\":13000,\"deviceName\":\"one\"}";
}

// What a descriptor with these sizes has afterwards, without the zeros at the end.
Sizes after(const std::string& text, const Sizes& before, std::int32_t version = 900) {
  std::array<std::int32_t, 128> descriptor{};
  descriptor[kBefore + 2 + 24] = 7;  // what follows the list
  descriptor[kBefore] = version;
  descriptor[kBefore + 1] = 13000;
  std::copy(before.begin(), before.end(), descriptor.begin() + kBefore + 2);
  add_processing_clusters(descriptor.data(), text);
  CHECK_EQUAL(descriptor[kBefore + 2 + 24], 7);
  Sizes found(descriptor.begin() + kBefore + 2, descriptor.begin() + kBefore + 2 + 24);
  while (!found.empty() && found.back() == 0) found.pop_back();
  return found;
}

}  // namespace

TEST(multiprocessors_are_spread_over_as_few_clusters_as_hold_them) {
  const Sizes found = after(description(132, 900), {18});
  CHECK_EQUAL(found, (Sizes{18, 18, 16, 16, 16, 16, 16, 16}));
  CHECK_EQUAL(std::accumulate(found.begin(), found.end(), 0), 132);
  CHECK_EQUAL(after(description(148, 1000), {20}, 1000), (Sizes{20, 20, 18, 18, 18, 18, 18, 18}));
}

TEST(clusters_that_are_described_are_taken) {
  std::string text = description(132, 900);
  text.insert(1, "\"processingClusters\":[18, 18,18,18,18,16,16,10],");
  CHECK_EQUAL(after(text, {18}), (Sizes{18, 18, 18, 18, 18, 16, 16, 10}));
}

TEST(a_gpu_of_a_single_cluster_has_no_more_multiprocessors_than_it_says) {
  CHECK_EQUAL(after(description(16, 900), {18}), (Sizes{16}));
  CHECK_EQUAL(after(description(15, 900), {18}), (Sizes{15}));
}

TEST(lists_that_are_not_of_a_single_cluster_stay) {
  CHECK_EQUAL(after(description(108, 800), {}, 800), Sizes{});
  CHECK_EQUAL(after(description(132, 900), {18, 16}), (Sizes{18, 16}));
  CHECK_EQUAL(after(description(132, 900), {18}, 800), (Sizes{18}));  // not the device that is described
  CHECK_EQUAL(after("{\"deviceVer\":900}", {18}), (Sizes{18}));
  CHECK_EQUAL(after(description(1000, 900), {18}), (Sizes{18}));  // more clusters than there is room for
}
