// The device memory that a NCCL communicator takes beside the caller's tensors. The phantom GPU takes it when its NCCL
// connects, and an estimate counts it for a run on the CPU, which notes what NCCL would have connected.
#pragma once

#include <cstdint>
#include <string>

namespace xmem::nccl {

// The GPU of a rank.
struct NcclCard {
  int capability;  // 90 for 9.0
  bool has_nvlink;
};

NcclCard nccl_card(int capability, const std::string& name);

// What the environment of the job sets; 0 where it sets nothing.
struct NcclSettings {
  std::uint64_t buffer_bytes = 0;    // NCCL_BUFFSIZE
  std::uint64_t least_channels = 0;  // NCCL_MIN_NCHANNELS
  std::uint64_t most_channels = 0;   // NCCL_MAX_NCHANNELS
};

// The ranks of a communicator: all, and those on the server of this one. Servers have consecutive ranks, alike in
// number.
struct NcclRanks {
  int all;
  int here;

  bool on_one_server() const { return here >= all; }
};

// What a communicator connects, each when a collective first needs it (since NCCL 2.22; before, all but the peers at
// once).
enum class NcclPart : std::uint8_t {
  table,      // of all peers in each channel; when the communicator is made
  ring,       // all collectives
  tree,       // all-reduce
  multicast,  // all-reduce through the switch (NVLink SHARP): Hopper and newer, three or more on one server
  near_peer,  // each peer on the same server that is sent to or received from
  far_peers,  // all peers on other servers together
};

// Approximate bytes of a part, from NCCL's source (2.21 to 2.29); 0 for cards without NVLink, which take 2 to 4
// channels and mostly buffers on the host.
//
// - A connection within a server: the buffers of all protocols on one side, 4 MiB for Simple (or NCCL_BUFFSIZE), 4.7
// MiB
//   for LL128 and 0.5 MiB for LL (computeBuffSizes in init.cc), in 2 MiB pages, and one page on the other side: 12 MiB
//   (transport/p2p.cc). Logs on H100 show these very allocations, of 10 and 2 MiB (github.com/NVIDIA/nccl/issues/1685).
// - A connection to another server, with GPUDirect RDMA: Simple and LL128, 10 MiB for either direction
//   (sendProxyConnect and recvProxyConnect in transport/net.cc). Each channel of a ring enters and leaves a server
//   once; of trees, it has 2 edges on average, in both directions.
// - Channels: 24 are logged within servers of A100 and H100 (issues 964, 1259). Between servers, one for each rank
// here,
//   which has a network card of its own, twice, and from Hopper on twice again below 16 (ncclTopoPostset in
//   graph/connect.cc). NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS bound them.
// - Multicast: 16 channels (32 and 24 on Blackwell), 2 directions, 8 steps of 128 KiB, for each rank
// (transport/nvls.cc).
// - Peers: 12 MiB a channel within a server, with all channels where there is one server (3.3 GB for an all-to-all on
//   8 H100 in issue 1685), else with 2; to others, 16 steps of 128 KiB a channel, for sending and for receiving, shared
//   by all peers (sharedNetBuffersInit).
//
// On 4 A100 the tree is measured to add 144 MiB to a communicator of all to one of two, where this says 288 for cards
// inside the chain and 144 for those at its ends. Not counted: NCCL's kernels, registered user buffers.
std::uint64_t nccl_bytes(const NcclCard& card, const NcclSettings& settings, const NcclRanks& ranks, NcclPart part);

}  // namespace xmem::nccl
