#include "simulation/requests.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace xmem::simulation {
namespace {

void require_lists(const Alternatives& alternatives, std::size_t blocks) {
  const auto [list, begin, size_bytes] = alternatives;
  if (list.size() != blocks) {
    throw ConfigError("alternatives are given for " + std::to_string(list.size()) + " blocks",
                      "give a list, or -1, for each of the " + std::to_string(blocks) + " blocks");
  }
  if (begin.empty() || begin.front() != 0 || begin.back() != static_cast<std::int64_t>(size_bytes.size()) ||
      std::ranges::adjacent_find(begin, std::ranges::greater_equal{}) != begin.end()) {
    throw ConfigError("the lists of alternatives do not divide the " + std::to_string(size_bytes.size()) + " sizes",
                      "give the start of each list, ascending from 0, and the end of the last; each list needs a size");
  }
  const auto lists = static_cast<std::int64_t>(begin.size()) - 1;
  const auto unknown = std::ranges::find_if(list, [&](std::int32_t number) { return number < -1 || number >= lists; });
  if (unknown != list.end()) {
    throw ConfigError(
        "block " + std::to_string(unknown - list.begin()) + " has the unknown list " + std::to_string(*unknown),
        "use -1 or a list below " + std::to_string(lists));
  }
  const auto impossible =
      std::ranges::find_if(size_bytes, [](Bytes size) { return size < 0 || size > kMaxBlockBytes; });
  if (impossible != size_bytes.end()) {
    throw ConfigError("an alternative has an invalid size of " + std::to_string(*impossible) + " bytes",
                      "use a size between 0 and 2^44 bytes");
  }
}

}  // namespace

void require_consistent(const Requests& requests) {
  if (requests.kind.size() != requests.block.size() || requests.size_bytes.size() != requests.stream.size()) {
    throw ConfigError("the request columns have " + std::to_string(requests.kind.size()) + " and " +
                          std::to_string(requests.block.size()) + " rows, and the block columns " +
                          std::to_string(requests.size_bytes.size()) + " and " + std::to_string(requests.stream.size()),
                      "use columns of equal length; build the requests with make_requests");
  }
  const std::size_t blocks = requests.size_bytes.size();
  if ((!requests.mempool.empty() && requests.mempool.size() != blocks) ||
      (!requests.restores.empty() && requests.restores.size() != blocks)) {
    throw ConfigError("pools are given for " + std::to_string(requests.mempool.size()) + " blocks and places for " +
                          std::to_string(requests.restores.size()) + ", but there are " + std::to_string(blocks) +
                          " blocks",
                      "give both for all blocks, or for none");
  }
  const auto other = std::ranges::find_if(requests.restores, [&](std::int32_t block) {
    return block < kFreeAtCheckpoint || block >= static_cast<std::int64_t>(blocks);
  });
  if (other != requests.restores.end()) {
    throw ConfigError("a block restores the place of the unknown block " + std::to_string(*other),
                      "use -1, -2 or a block below " + std::to_string(blocks));
  }
  if (!requests.alternatives.list.empty()) require_lists(requests.alternatives, requests.size_bytes.size());
}

}  // namespace xmem::simulation
