// The device memory that a NCCL communicator takes beside the caller's tensors.
#pragma once

#include <cstdint>

#include "machine/machine.hpp"

namespace xmem::phantom {

// Approximate, for a communicator of `size` ranks on one server whose cards are alike:
//   channels x connections x (buffers of the receiver + buffers of the sender)
// The buffers are those of NCCL's source (computeBuffSizes in init.cc; p2pSendSetup and p2pRecvSetup in
// transport/p2p.cc): 4 MiB for the protocol Simple (or NCCL_BUFFSIZE), 4.7 MiB for LL128 and 0.5 MiB for LL, rounded up
// to 2 MiB on either side, so 12 MiB a connection; logs of NCCL on H100 show these very allocations, of 10 and 2 MiB
// (github.com/NVIDIA/nccl/issues/1685). Rings need one connection, trees among more than two ranks another one.
//
// The number of channels is what varies: 24 are logged for servers of A100 and H100 with NVLink (issues 964, 1259), at
// most NCCL_MAX_NCHANNELS; on 4 A100 the tree is measured to add 144 MiB to a communicator of all to one of two, where
// this says 288 for cards inside the chain and 144 for those at its ends. Cards without NVLink take 2 to 4 channels and
// mostly buffers on the host: 0 is said of them. Not counted: NCCL's kernels, buffers for NVLink SHARP, and those of
// point-to-point operations (3.3 GB for an all-to-all on 8 H100 in issue 1685).
std::uint64_t nccl_buffer_bytes(const Device& device, int size);

}  // namespace xmem::phantom
