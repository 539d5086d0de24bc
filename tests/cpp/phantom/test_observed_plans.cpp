#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "libraries/cudnn/planning/observed_plans.hpp"
#include "testing.hpp"

using namespace xmem::phantom::cudnn;

namespace {

using Sizes = std::vector<std::int64_t>;
using Workspace = std::optional<std::int64_t>;

constexpr std::uint64_t kX = 1, kW = 2, kY = 3, kStep = 4, kGraph = 5, kPlan = 6;

template <typename Value>
std::string bytes_of(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

Request about(std::uint64_t descriptor, int attribute, int type) {
  return {Operation::kSet, attribute, type, 0, descriptor, 0};
}

Sizes strides_of(const Sizes& sizes, bool channels_last) {
  const std::int64_t area = sizes[2] * sizes[3];
  if (channels_last) return {sizes[1] * area, 1, sizes[3] * sizes[1], sizes[1]};
  return {sizes[1] * area, area, sizes[3], 1};
}

// What becomes of a plan of a forward convolution in float32, by what it is without a device.
Workspace on_device(const Sizes& filter, bool channels_last, Workspace without_device, bool tensor_cores) {
  ObservedPlans plans;
  const Sizes images{8, 64, 10, 10}, wider{8, 128, 10, 10};  // 204,800 and 409,600 bytes
  const std::vector<std::pair<std::uint64_t, Sizes>> tensors{{kX, images}, {kW, filter}, {kY, wider}};
  for (const auto& [number, sizes] : tensors) {
    plans.set(about(number, 901, 1), bytes_of(std::vector<std::int32_t>{0}));
    plans.set(about(number, 902, kInt64Type), bytes_of(sizes));
    plans.set(about(number, 903, kInt64Type), bytes_of(strides_of(sizes, channels_last)));
  }
  plans.set(about(kStep, 703, kDescriptorType), bytes_of(std::vector<std::uint64_t>{kW}));
  plans.set(about(kStep, 704, kDescriptorType), bytes_of(std::vector<std::uint64_t>{kX}));
  plans.set(about(kStep, 705, kDescriptorType), bytes_of(std::vector<std::uint64_t>{kY}));
  plans.set(about(kGraph, 801, kDescriptorType), bytes_of(std::vector<std::uint64_t>{kStep}));
  plans.set(about(kPlan, 401, kDescriptorType), bytes_of(std::vector<std::uint64_t>{kGraph}));
  const BuiltPlan built =
      plans.on_device(kPlan, {without_device.has_value(), without_device.value_or(0)}, tensor_cores);
  return built.built ? Workspace(built.workspace) : std::nullopt;
}

}  // namespace

TEST(plans_of_old_libraries_are_as_real_runs_showed_them) {
  const Sizes dense{128, 64, 3, 3}, pointwise{128, 64, 1, 1}, grouped{128, 8, 3, 3};
  CHECK(on_device(dense, false, 614400, true) == Workspace(614400));
  CHECK(on_device(dense, false, {}, true) == Workspace(204800));  // built on a device alone: what it reads is converted
  CHECK(on_device(dense, false, {}, false) == Workspace());
  CHECK(on_device(dense, true, {}, true) == Workspace());
  CHECK(on_device(pointwise, false, 614400, true) == Workspace());
  CHECK(on_device(pointwise, false, 204800, true) == Workspace());
  CHECK(on_device(pointwise, false, 204799, true) == Workspace(204799));  // no tensor's size: something else
  CHECK(on_device(pointwise, false, 614400, false) == Workspace(614400));
  CHECK(on_device(pointwise, true, 614400, true) == Workspace(614400));
  CHECK(on_device(grouped, false, {}, true) == Workspace());
}
