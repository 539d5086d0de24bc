#include "libraries/cudnn/described_graphs.hpp"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "libraries/cudnn/planning/protocol.hpp"

namespace xmem::phantom::cudnn {
namespace {

// Numbers of cudnn_graph.h beyond those of the planner.
enum Descriptor : int {
  kConvolution = 1,
  kForward = 10,
  kBackwardFilter = 11,
  kBackwardData = 12,
  kOperationGraph = 15,
  kTensor = 17,
};
constexpr int kGraphOperations = 801;
constexpr int kDataType = 1;
constexpr int kInt64 = 3;

struct Named {
  int attribute;
  const char* key;
};
// What is kept of tensors, convolutions and operations; of an operation without a name here its number is.
constexpr Named kKept[] = {
    {100, "arithmetic"}, {102, "dilation"},    {103, "stride"}, {104, "padding_after"},
    {105, "padding"},    {702, "convolution"}, {703, "w"},      {704, "x"},
    {705, "y"},          {708, "convolution"}, {709, "w"},      {710, "x"},
    {711, "y"},          {714, "convolution"}, {715, "w"},      {716, "x"},
    {717, "y"},          {901, "dtype"},       {902, "shape"},  {903, "strides"},
    {1520, "a"},         {1521, "b"},          {1522, "c"},     {2800, "q"},
    {2801, "k"},         {2802, "v"},          {2803, "o"},     {2851, "q"},
    {2852, "k"},         {2853, "v"},          {2854, "o"},
};

const char* key_of(int attribute) {
  for (const Named& named : kKept) {
    if (named.attribute == attribute) return named.key;
  }
  return nullptr;
}

const char* operation_of(int descriptor_type) {
  switch (descriptor_type) {
    case kForward:
      return "convolution";
    case kBackwardData:
      return "convolution_data_gradient";
    case kBackwardFilter:
      return "convolution_filter_gradient";
    case 19:
      return "matmul";
    case 41:
      return "attention";
    case 43:
      return "attention_gradient";
    default:
      return nullptr;
  }
}

struct Followed {
  std::mutex mutex;
  std::unordered_map<void*, std::string> text;  // members of a JSON object; of a graph and what is made of it, a list
};

Followed& followed() {
  static auto* kept = new Followed();
  return *kept;
}

std::string numbers(std::int64_t count, const void* elements) {
  std::string list = "[";
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t value = 0;
    std::memcpy(&value, static_cast<const char*>(elements) + i * static_cast<std::int64_t>(sizeof value), sizeof value);
    list += (i > 0 ? "," : "") + std::to_string(value);
  }
  return list + "]";
}

void* descriptor_at(const void* elements, std::int64_t place) {
  void* descriptor = nullptr;
  std::memcpy(&descriptor, static_cast<const char*>(elements) + place * static_cast<std::int64_t>(sizeof descriptor),
              sizeof descriptor);
  return descriptor;
}

}  // namespace

void follow_attribute(void* descriptor, int descriptor_type, int attribute, int type, std::int64_t count,
                      const void* elements) {
  if (elements == nullptr || count <= 0) return;
  Followed& kept = followed();
  const std::lock_guard lock(kept.mutex);
  std::string& text = kept.text[descriptor];
  const char* key = key_of(attribute);
  if (type == kDescriptorType && attribute == kGraphOperations) {
    text.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto operation = kept.text.find(descriptor_at(elements, i));
      text += (i > 0 ? ",{" : "{") + (operation != kept.text.end() ? operation->second : std::string()) + "}";
    }
    return;
  }
  std::string value;
  if (type == kDescriptorType) {
    const auto child = kept.text.find(descriptor_at(elements, 0));
    if (child == kept.text.end()) return;
    if (key == nullptr) {  // an engine, a configuration or a plan: of the graph that it is made of
      if (operation_of(descriptor_type) == nullptr && text.empty()) {
        const std::string copied = child->second;  // `text` and it live in the same table
        text = copied;
      }
      return;
    }
    value = "{" + child->second + "}";
  } else if (key != nullptr && type == kInt64) {
    value = numbers(count, elements);
  } else if (key != nullptr && type == kDataType) {
    int number = 0;
    std::memcpy(&number, elements, sizeof number);
    value = std::to_string(number);
  } else {
    return;
  }
  if (text.empty() && operation_of(descriptor_type) != nullptr) {
    text = std::string("\"operation\":\"") + operation_of(descriptor_type) + "\"";
  }
  text += (text.empty() ? "\"" : ",\"") + std::string(key) + "\":" + value;
}

void follow_copy(void* from, void* to) {
  Followed& kept = followed();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.text.find(from);
  if (found == kept.text.end()) return;
  const std::string copied = found->second;
  kept.text[to] = copied;
}

void forget_graph(void* descriptor) {
  Followed& kept = followed();
  const std::lock_guard lock(kept.mutex);
  kept.text.erase(descriptor);
}

std::string problem_of_plan(void* plan) {
  Followed& kept = followed();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.text.find(plan);
  if (found == kept.text.end() || found->second.empty()) return {};
  return "{\"operations\":[" + found->second + "]}";
}

}  // namespace xmem::phantom::cudnn
