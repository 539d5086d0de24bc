// How the multiprocessors of a described GPU lie together in graphics processing clusters (GPCs). From compute
// capability 9.0 on the blocks of a cluster run in one GPC, so that how many of a kernel run at once depends on it, and
// with that the workspace of the engines that divide what is left over among all blocks.
//
// On a device cuDNN finds the sizes of the GPCs by asking how many clusters of each size fit. It has no member for them
// in the description of a device, and leaves there a single GPC of the architecture's size: a GPU of 18
// multiprocessors, whatever the description says of their number.
#pragma once

#include <string>

namespace xmem::phantom::cudnn {

// Gives a finalized CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR the GPCs of its `description`: those of its member
// processingClusters, which cuDNN passes over, else as many as hold its multiprocessors.
// Does nothing where the descriptor does not hold them as cuDNN 9.8 to 9.20 do, or the architecture has none.
void add_processing_clusters(void* properties, const std::string& description);

}  // namespace xmem::phantom::cudnn
