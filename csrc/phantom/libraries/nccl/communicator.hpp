// A NCCL communicator: its ranks, and the device memory that its connections have taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "nccl/nccl_buffers.hpp"

namespace xmem::phantom {

using nccl::NcclPart;
using nccl::NcclRanks;

struct UniqueId {
  unsigned char bytes[128];
};

struct Communicator {
  UniqueId id;
  int rank;
  int size;
  int device;
  NcclRanks ranks;
  std::atomic<std::uint64_t> buffer_bytes{0};
  std::atomic<unsigned> splits{0};

  Communicator(const UniqueId& its_id, int its_rank, NcclRanks its_ranks, int its_device);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Takes the memory of a part, once. False where the card has no more.
  bool connect(NcclPart part);
  // The same for sending to a rank, or receiving from it.
  bool connect_peer(int peer);
  void disconnect();

  // What it has connected: a JSON object with the fields of CommunicatorNote (python/xmem/trace/notes.py).
  std::string as_json();

 private:
  bool take(NcclPart part);

  std::mutex mutex_;
  std::set<NcclPart> parts_;
  std::set<int> near_peers_;
};

// Where a process stands in communicators that are made from an id or split off by a colour, when its peers do not run
// (XMEM_RANKS). Told by xmem_child, which knows what PyTorch's groups are.
std::optional<int> ranks_here_of(const UniqueId& id);

struct Place {
  int rank;
  NcclRanks ranks;
};
std::optional<Place> place_of_color(int color);

}  // namespace xmem::phantom
