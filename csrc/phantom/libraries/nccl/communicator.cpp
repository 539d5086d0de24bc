#include "libraries/nccl/communicator.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "machine/report.hpp"
#include "memory/device_memory.hpp"

namespace xmem::phantom {
namespace {

struct Told {
  std::mutex mutex;
  std::unordered_map<std::string, int> ranks_here;
  std::unordered_map<int, Place> places;
};

struct Living {
  std::mutex mutex;
  std::vector<Communicator*> communicators;  // in the order in which they were made
};

Living& living() {
  static Living all;
  return all;
}

Told& told() {
  static Told facts;
  return facts;
}

std::uint64_t setting(const char* name) {
  const char* text = std::getenv(name);
  const long long value = text == nullptr ? 0 : std::atoll(text);
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

nccl::NcclSettings settings() {
  return {setting("NCCL_BUFFSIZE"), setting("NCCL_MIN_NCHANNELS"), setting("NCCL_MAX_NCHANNELS")};
}

std::string key_of(const unsigned char* id) {
  return {reinterpret_cast<const char*>(id), sizeof(UniqueId)};
}

}  // namespace

Communicator::Communicator(const UniqueId& its_id, int its_rank, NcclRanks its_ranks, int its_device)
    : id(its_id), rank(its_rank), size(its_ranks.all), device(its_device), ranks(its_ranks) {
  const std::lock_guard lock(living().mutex);
  living().communicators.push_back(this);
}

Communicator::~Communicator() {
  const std::lock_guard lock(living().mutex);
  auto& all = living().communicators;
  all.erase(std::find(all.begin(), all.end(), this));
}

std::string Communicator::as_json() {
  const std::lock_guard lock(mutex_);
  const auto flag = [this](NcclPart part) { return parts_.count(part) > 0 ? "true" : "false"; };
  return "{\"ranks\": " + std::to_string(ranks.all) + ", \"here\": " + std::to_string(ranks.here) +
         ", \"ring\": " + flag(NcclPart::ring) + ", \"tree\": " + flag(NcclPart::tree) +
         ", \"near_peers\": " + std::to_string(near_peers_.size()) + ", \"far_peers\": " + flag(NcclPart::far_peers) +
         ", \"taken_bytes\": " + std::to_string(buffer_bytes.load()) + "}";
}

bool Communicator::connect(NcclPart part) {
  const std::lock_guard lock(mutex_);
  return parts_.count(part) > 0 || (take(part) && parts_.insert(part).second);
}

bool Communicator::connect_peer(int peer) {
  if (peer == rank || ranks.here < 1) return true;
  if (peer / ranks.here != rank / ranks.here) return connect(NcclPart::far_peers);
  const std::lock_guard lock(mutex_);
  return near_peers_.count(peer) > 0 || (take(NcclPart::near_peer) && near_peers_.insert(peer).second);
}

void Communicator::disconnect() {
  if (const std::uint64_t bytes = buffer_bytes.exchange(0)) give_pages(device, bytes, Use::kNccl);
}

bool Communicator::take(NcclPart part) {
  const Device& card = machine().device(device);
  const std::uint64_t bytes = nccl_bytes(nccl::nccl_card(card.capability(), card.name), settings(), ranks, part);
  if (bytes > 0 && take_pages(device, bytes, Use::kNccl) != kSuccess) return false;
  buffer_bytes += bytes;
  return true;
}

std::optional<int> ranks_here_of(const UniqueId& id) {
  const std::lock_guard lock(told().mutex);
  const auto found = told().ranks_here.find(key_of(id.bytes));
  return found == told().ranks_here.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Place> place_of_color(int color) {
  const std::lock_guard lock(told().mutex);
  const auto found = told().places.find(color);
  return found == told().places.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace xmem::phantom

using namespace xmem::phantom;  // NOLINT: what follows is C

// For xmem_child: a JSON list of the communicators of this process. Writes as much as there is room for, and returns
// how much there is, both without the zero at the end.
PHANTOM_EXPORT std::size_t xmem_phantom_communicators(char* text, std::size_t room) {
  std::string json = "[";
  {
    const std::lock_guard lock(living().mutex);
    for (Communicator* each : living().communicators) json += (json.size() > 1 ? ", " : "") + each->as_json();
  }
  return copy_out(json + "]", text, room);
}

// For xmem_child, before PyTorch makes a communicator from this id: how many of its ranks are on this server.
PHANTOM_EXPORT void xmem_phantom_group_of_id(const unsigned char* id, int here) {
  const std::lock_guard lock(told().mutex);
  told().ranks_here[key_of(id)] = here;
}

// For xmem_child, before PyTorch splits a communicator: how many ranks get this colour, how many of them are on this
// server, and which this process is.
PHANTOM_EXPORT void xmem_phantom_group_of_color(int color, int rank, int size, int here) {
  const std::lock_guard lock(told().mutex);
  told().places[color] = {rank, {size, here}};
}
