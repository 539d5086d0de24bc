#include "libraries/cudnn/described_graphs.hpp"

#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libraries/cudnn/library.hpp"
#include "libraries/cudnn/planning/planner.hpp"
#include "libraries/cudnn/planning/protocol.hpp"
#include "libraries/cudnn/status.hpp"

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
  kKnobChoice = 7,
};
constexpr int kGraphOperations = 801;
constexpr int kConfigKnobs = 302;
constexpr int kKnobType = 600;
constexpr int kKnobValue = 601;
constexpr int kEngineNumber = 1301;
constexpr int kDataType = 1;
constexpr int kInt64 = 3;
constexpr int kKnobTypeType = 9;
constexpr std::int64_t kMostKnobs = 16;
constexpr int kMostDimensions = 8;

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
  std::unordered_map<void*, std::string> text;    // members of a JSON object; of a graph and what is made of it, a list
  std::unordered_map<void*, std::string> engine;  // of plans that were executed
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

// A descriptor of the planner's, for as long as it is asked.
class Asked {
 public:
  explicit Asked(int type) { planner().create(type, &descriptor_); }
  ~Asked() { planner().destroy(descriptor_); }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  // Filled from another one; false where the planner does not answer.
  bool fill_from(void* other, int attribute) {
    std::int64_t count = 0;
    return planner().get(other, attribute, kDescriptorType, 1, &count, &descriptor_) == kSuccess && count == 1;
  }
  template <typename Number>
  Number number(int attribute, int type) const {
    Number value = -1;
    std::int64_t count = 0;
    const bool told = planner().get(descriptor_, attribute, type, 1, &count, &value) == kSuccess && count == 1;
    return told ? value : Number{-1};
  }
  void* get() const { return descriptor_; }

 private:
  void* descriptor_ = nullptr;
};

// JSON members: the engine of a plan and its knobs, by type; empty where the planner does not say.
std::string engine_of(void* plan) {
  Asked config(kEngineConfig);
  Asked engine(kEngine);
  if (!config.fill_from(plan, kPlanConfig) || !engine.fill_from(config.get(), kConfigEngine)) return {};
  const auto number = engine.number<std::int64_t>(kEngineNumber, kInt64);
  if (number < 0) return {};
  std::string text = "\"number\":" + std::to_string(number) + ",\"knobs\":{";
  std::vector<void*> knobs(kMostKnobs, nullptr);
  for (void*& knob : knobs) planner().create(kKnobChoice, &knob);
  std::int64_t count = 0;
  if (planner().get(config.get(), kConfigKnobs, kDescriptorType, kMostKnobs, &count, knobs.data()) != kSuccess) {
    count = 0;
  }
  bool first = true;
  for (std::int64_t i = 0; i < count && i < kMostKnobs; ++i) {
    void* knob = knobs[static_cast<std::size_t>(i)];
    int type = -1;
    std::int64_t value = 0, told = 0;
    if (planner().get(knob, kKnobType, kKnobTypeType, 1, &told, &type) != kSuccess ||
        planner().get(knob, kKnobValue, kInt64, 1, &told, &value) != kSuccess) {
      continue;
    }
    text += std::string(first ? "\"" : ",\"") + std::to_string(type) + "\":" + std::to_string(value);
    first = false;
  }
  for (void* knob : knobs) planner().destroy(knob);
  return text + "}";
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
  kept.engine.erase(descriptor);
}

std::string problem_of_plan(void* plan) {
  Followed& kept = followed();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.text.find(plan);
  if (found == kept.text.end() || found->second.empty()) return {};
  auto engine = kept.engine.find(plan);
  if (engine == kept.engine.end()) engine = kept.engine.emplace(plan, engine_of(plan)).first;  // a plan runs often
  std::string problem = "{\"operations\":[" + found->second + "]";
  if (!engine->second.empty()) problem += ",\"engine\":{" + engine->second + "}";
  return problem + "}";
}

std::string problem_of_call(const char* operation, const void* tensor, const std::string& members) {
  int data_type = 0, dimensions = 0;
  int sizes[kMostDimensions] = {}, strides[kMostDimensions] = {};
  const auto describe = reinterpret_cast<int (*)(const void*, int, int*, int*, int*, int*)>(
      library_function("cudnnGetTensorNdDescriptor"));
  if (describe == nullptr ||
      describe(tensor, kMostDimensions, &data_type, &dimensions, sizes, strides) != static_cast<int>(kSuccess)) {
    return {};
  }
  const auto list = [&](const int* numbers_of) {
    std::string text = "[";
    for (int i = 0; i < dimensions && i < kMostDimensions; ++i) {
      text += (i > 0 ? "," : "") + std::to_string(numbers_of[i]);
    }
    return text + "]";
  };
  return std::string("{\"operations\":[{\"operation\":\"") + operation +
         "\",\"x\":{\"dtype\":" + std::to_string(data_type) + ",\"shape\":" + list(sizes) +
         ",\"strides\":" + list(strides) + "}" + (members.empty() ? "" : ",") + members + "}]}";
}

}  // namespace xmem::phantom::cudnn
