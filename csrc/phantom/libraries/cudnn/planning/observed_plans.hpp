// What real runs say of the plans of cuDNN 9.0 to 9.7, which rank their engines without a device but do not build all
// of them without one (32 published runs of image models, torch 2.6.0 with cuDNN 9.1; docs/accuracy.md):
//   - Plans of tensor cores that need a device to be built do build on one: the first choice for most gradients of the
//     input. As engines do that are built here, they convert what they read to NHWC.
//   - Pointwise and grouped convolutions in NCHW do without such conversions, however the engines are ranked: with
//     them most runs of MobileNet, MNASNet and RegNet come out too high, up to 17%.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libraries/cudnn/planning/protocol.hpp"

namespace xmem::phantom::cudnn {

struct BuiltPlan {
  bool built = false;
  std::int64_t workspace = 0;
};

// Follows descriptors to the convolution that they are about.
class ObservedPlans {
 public:
  void set(const Request& request, const std::string& payload);

  // Descriptors that were filled from another one.
  void filled(std::uint64_t from, const std::string& numbers);

  void destroyed(std::uint64_t descriptor);

  // What becomes of a plan on a device.
  BuiltPlan on_device(std::uint64_t plan, const BuiltPlan& without_device, bool tensor_cores) const;

 private:
  struct Tensor {
    std::vector<std::int64_t> sizes, strides;
    std::int64_t element_bytes = 4;

    std::int64_t bytes() const;
    bool channels_last() const;
  };
  struct Convolution {
    Tensor x, w, y;
    bool reads_x = true, reads_y = false;

    std::int64_t read_bytes() const { return (reads_x ? x.bytes() : 0) + (reads_y ? y.bytes() : 0); }
  };

  std::map<std::uint64_t, Tensor> tensors_;
  std::map<std::uint64_t, Convolution> convolutions_;      // by the descriptor of the operation
  std::map<std::uint64_t, std::uint64_t> convolution_of_;  // of graphs, heuristics, engines and plans
};

}  // namespace xmem::phantom::cudnn
