#include "libraries/cudnn/planning/observed_plans.hpp"

#include <algorithm>
#include <cstring>

namespace xmem::phantom::cudnn {
namespace {

enum TensorAttribute : int { kTensorType = 901, kTensorSizes = 902, kTensorStrides = 903 };
enum DataType : std::int32_t { kDouble = 1, kHalf = 2, kBfloat16 = 9 };

// Attributes of the forward operation, and of those of the gradients of input and filter.
bool is_any(int attribute, int forward, int input_gradient, int filter_gradient) {
  return attribute == forward || attribute == input_gradient || attribute == filter_gradient;
}

std::vector<std::int64_t> numbers_of(const std::string& payload) {
  std::vector<std::int64_t> numbers(payload.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(std::int64_t));
  return numbers;
}

}  // namespace

std::int64_t ObservedPlans::Tensor::bytes() const {
  std::int64_t product = element_bytes;
  for (const std::int64_t size : sizes) product *= size;
  return product;
}

bool ObservedPlans::Tensor::channels_last() const {
  return sizes.size() > 2 && strides.size() == sizes.size() && sizes[1] > 1 && strides[1] == 1;
}

void ObservedPlans::set(const Request& request, const std::string& payload) {
  const std::uint64_t descriptor = request.descriptor;
  if (request.kind == kTensorSizes) {
    tensors_[descriptor].sizes = numbers_of(payload);
  } else if (request.kind == kTensorStrides) {
    tensors_[descriptor].strides = numbers_of(payload);
  } else if (request.kind == kTensorType) {
    std::int32_t type = 0;
    std::memcpy(&type, payload.data(), std::min(sizeof type, payload.size()));
    tensors_[descriptor].element_bytes = type == kDouble ? 8 : type == kHalf || type == kBfloat16 ? 2 : 4;
  } else if (request.type == kDescriptorType && payload.size() >= sizeof(std::uint64_t)) {
    const auto about = static_cast<std::uint64_t>(numbers_of(payload).front());
    if (const auto found = convolution_of_.find(about); found != convolution_of_.end()) {
      convolution_of_[descriptor] = found->second;
    }
    const auto tensor = tensors_.find(about);
    if (tensor == tensors_.end()) return;
    if (is_any(request.kind, 703, 709, 715)) {
      Convolution& convolution = convolutions_[descriptor];
      convolution.w = tensor->second;
      convolution.reads_x = request.kind != 709;
      convolution.reads_y = request.kind != 703;
    }
    if (is_any(request.kind, 704, 710, 716)) convolutions_[descriptor].x = tensor->second;
    if (is_any(request.kind, 705, 711, 717)) convolutions_[descriptor].y = tensor->second;
    if (convolutions_.count(descriptor) != 0) convolution_of_[descriptor] = descriptor;
  }
}

void ObservedPlans::filled(std::uint64_t from, const std::string& numbers) {
  const auto found = convolution_of_.find(from);
  if (found == convolution_of_.end()) return;
  const std::uint64_t convolution = found->second;
  for (const std::int64_t number : numbers_of(numbers)) {
    convolution_of_[static_cast<std::uint64_t>(number)] = convolution;
  }
}

void ObservedPlans::destroyed(std::uint64_t descriptor) {
  tensors_.erase(descriptor);
  convolution_of_.erase(descriptor);  // the operation stays: plans outlive the descriptor of theirs
}

BuiltPlan ObservedPlans::on_device(std::uint64_t plan, const BuiltPlan& without_device, bool tensor_cores) const {
  const auto owner = convolution_of_.find(plan);
  if (!tensor_cores || owner == convolution_of_.end()) return without_device;
  const Convolution& convolution = convolutions_.at(owner->second);
  if (convolution.x.channels_last() || convolution.w.sizes.size() != convolution.x.sizes.size()) return without_device;
  const std::int64_t x = convolution.x.bytes(), y = convolution.y.bytes();
  BuiltPlan on_device{true, without_device.built ? without_device.workspace : convolution.read_bytes()};
  const std::vector<std::int64_t>& filter = convolution.w.sizes;
  const bool pointwise = std::all_of(filter.begin() + 2, filter.end(), [](std::int64_t size) { return size == 1; });
  const bool grouped = filter[1] != convolution.x.sizes[1];
  if ((pointwise || grouped) && on_device.workspace >= std::min(x, y)) on_device.built = false;
  return on_device;
}

}  // namespace xmem::phantom::cudnn
