// Recurrent networks. The space of the weights and the place of each in it follow from the descriptor alone. The
// temporary spaces are asked of the library of this process, in a helper that describes the device to it; where the
// library does not answer they are estimated.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "libraries/cudnn/described_graphs.hpp"
#include "libraries/cudnn/dropout.hpp"
#include "libraries/cudnn/handle.hpp"
#include "libraries/cudnn/library.hpp"
#include "libraries/cudnn/planning/helper.hpp"
#include "libraries/cudnn/status.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "runtime/launch_log.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C
using cudnn::Handle;
using cudnn::RnnQuery;
using cudnn::RnnSizes;

namespace {

// cudnnRNNMode_t and its companions.
enum Cell : int { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };
enum Bias : int { kNoBias = 0, kInputBias = 1, kBothBiases = 2, kRecurrentBias = 3 };
constexpr int kBidirectional = 1;
constexpr int kSkipInput = 1;
constexpr int kTraining = 1;
constexpr int kStandardAlgorithm = 0;

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(cudnn::library_function(name));
  return function == nullptr ? static_cast<int>(cudnn::kNotInitialized) : function(arguments...);
}

std::int64_t bytes_of(int data_type) {
  switch (data_type) {
    case 1:  // double
      return 8;
    case 2:  // half
    case 9:  // bfloat16
      return 2;
    default:
      return 4;
  }
}

std::size_t rounded_up(std::int64_t bytes, std::int64_t to) {
  return static_cast<std::size_t>((bytes + to - 1) / to * to);
}

// The shapes of a network, as cudnnSetRNNDescriptor_v8 was told.
class Network {
 public:
  explicit Network(const void* descriptor) {
    void* dropout = nullptr;
    known_ = call("cudnnGetRNNDescriptor_v8", descriptor, &q_.algorithm, &q_.cell, &q_.bias, &q_.direction,
                  &q_.input_mode, &q_.data_type, &q_.math_precision, &q_.math_type, &q_.input_size, &q_.hidden_size,
                  &q_.projection_size, &q_.layers, &dropout, &q_.flags) == cudnn::kSuccess;
    q_.dropout = cudnn::dropout_rate(dropout);
  }

  bool known() const { return known_; }
  const RnnQuery& query() const { return q_; }
  int directions() const { return q_.direction == kBidirectional ? 2 : 1; }
  int pseudo_layers() const { return q_.layers * directions(); }
  int gates() const { return q_.cell == kLstm ? 4 : q_.cell == kGru ? 3 : 1; }
  bool projected() const { return q_.projection_size != 0 && q_.projection_size != q_.hidden_size; }
  std::int64_t element() const { return bytes_of(q_.data_type); }
  std::int64_t hidden() const { return q_.hidden_size; }
  std::int64_t output() const { return projected() ? q_.projection_size : q_.hidden_size; }

  // A matrix of the weights: 0 to gates - 1 multiply the input, as many more the hidden state, one more projects it.
  struct Matrix {
    std::int64_t rows, columns;
    std::int64_t elements() const { return rows * columns; }
  };
  int matrices() const { return 2 * gates() + (projected() ? 1 : 0); }
  Matrix matrix(int pseudo_layer, int number) const {
    if (number == 2 * gates()) return {output(), hidden()};
    if (number >= gates()) return {hidden(), output()};
    if (pseudo_layer >= directions()) return {hidden(), output() * directions()};
    return {q_.input_mode == kSkipInput ? 0 : hidden(), q_.input_size};
  }
  bool has_bias(int number) const {
    if (number >= 2 * gates()) return false;
    return q_.bias == kBothBiases || q_.bias == (number < gates() ? kInputBias : kRecurrentBias);
  }

  // All matrices lie before all biases, both by pseudo layer and number; nothing is padded.
  std::int64_t matrix_bytes() const { return offset_of_matrix(pseudo_layers(), 0); }
  std::int64_t offset_of_matrix(int pseudo_layer, int number) const {
    std::int64_t elements = 0;
    for (int layer = 0; layer <= pseudo_layer; ++layer) {
      const int end = layer < pseudo_layer ? matrices() : number;
      for (int matrix_number = 0; matrix_number < end; ++matrix_number) {
        elements += matrix(layer, matrix_number).elements();
      }
    }
    return elements * element();
  }
  std::int64_t offset_of_bias(int pseudo_layer, int number) const {
    std::int64_t before = 0;
    for (int other = 0; other < matrices(); ++other) {
      if (has_bias(other)) before += pseudo_layer + (other < number ? 1 : 0);
    }
    return matrix_bytes() + before * hidden() * element();
  }
  std::int64_t weight_bytes() const { return offset_of_bias(pseudo_layers(), 0); }

 private:
  RnnQuery q_{};
  bool known_ = false;
};

// A batch as cudnnSetRNNDataDescriptor was told, into the query; empty when it cannot be read.
std::vector<std::int32_t> read_batch(const void* descriptor, RnnQuery& query) {
  const char* name = "cudnnGetRNNDataDescriptor";
  int data_type = 0;
  double padding = 0;
  std::int32_t* no_lengths = nullptr;
  if (call(name, descriptor, &data_type, &query.layout, &query.longest, &query.batch_size, &query.vector_size, 0,
           no_lengths, static_cast<void*>(&padding)) != cudnn::kSuccess) {
    return {};
  }
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(std::max(query.batch_size, 0)));
  call(name, descriptor, &data_type, &query.layout, &query.longest, &query.batch_size, &query.vector_size,
       query.batch_size, lengths.data(), static_cast<void*>(&padding));
  return lengths;
}

// What 9.1, 9.8 and 9.20 answer for the standard algorithm. Reserved for the backward pass are, for every step of every
// sequence: the gates and the cell of an LSTM (with a projection also what goes into it and comes out), twice the gates
// of a GRU, the state of a plain cell; between layers the output, and a bit for each of its elements under dropout.
// The workspace holds the weights, 8 MiB a pseudo layer and about as much as the activations of the widest pass.
RnnSizes estimate(const Network& network, const std::vector<std::int32_t>& lengths, int input_size, int batch_size) {
  const std::int64_t steps = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t hidden = network.hidden();
  const int cell = network.query().cell;
  const std::int64_t directions = network.directions();
  std::int64_t kept = (cell == kLstm ? 5 : cell == kGru ? 6 : 1) * hidden;
  if (network.projected()) kept += hidden + network.output();
  const std::int64_t between = (network.query().layers - 1) * directions;
  const std::int64_t elements = steps * (network.pseudo_layers() * kept + between * hidden);
  const std::int64_t mask = static_cast<std::int64_t>(rounded_up((steps * directions * network.output() + 7) / 8, 32));
  RnnSizes sizes{};
  sizes.reserve = rounded_up(elements * network.element() + 256, 32);
  if (network.query().dropout > 0) sizes.reserve += static_cast<std::size_t>(between * mask);
  const std::int64_t width = input_size + (directions == 2 ? 14 : 5) * hidden;
  sizes.work = rounded_up(network.pseudo_layers() * (std::int64_t{8} << 20) + network.matrix_bytes() +
                              network.element() * (steps * width + 12 * network.pseudo_layers() * batch_size * hidden),
                          32);
  return sizes;
}

cudnn::Helper& helper() {
  static auto* started = new cudnn::Helper(cudnn::library_path());
  return *started;
}

// For an algorithm that the library does not have on this device, the standard one stands.
bool ask_library(RnnQuery query, const std::vector<std::int32_t>& lengths, RnnSizes* sizes) {
  if (helper().rnn_sizes(query, lengths.data(), sizes)) return true;
  query.algorithm = kStandardAlgorithm;
  return helper().rnn_sizes(query, lengths.data(), sizes);
}

int describe(void* tensor, int data_type, std::int64_t rows, std::int64_t columns) {
  const int sizes[] = {1, static_cast<int>(rows), static_cast<int>(columns)};
  const int strides[] = {sizes[1] * sizes[2], sizes[2], 1};
  return call("cudnnSetTensorNdDescriptor", tensor, data_type, 3, static_cast<const int*>(sizes),
              static_cast<const int*>(strides));
}

// Launches work on the handle's stream: kernels of every step, or one that stays on the device for all.
int run(Function function, const Handle* handle, const void* descriptor, const void* batch) {
  note(function);
  if (handle == nullptr) return cudnn::kBadParam;
  std::string problem;
  if (logs_launches()) {
    const Network network(descriptor);
    RnnQuery query = network.query();
    // A projection makes other products, of which nothing was recorded.
    if (network.known() && !network.projected() && !read_batch(batch, query).empty()) {
      const auto member = [](const char* key, std::int64_t value) {
        return std::string(",\"") + key + "\":" + std::to_string(value);
      };
      problem = "{\"operations\":[{\"operation\":\"recurrent\",\"x\":{\"dtype\":" + std::to_string(query.data_type) +
                ",\"shape\":[" + std::to_string(query.longest) + "," + std::to_string(query.batch_size) + "," +
                std::to_string(query.vector_size) + "]}" + member("cell", query.cell) +
                member("hidden", query.hidden_size) + member("layers", query.layers) +
                member("directions", network.directions()) + member("algorithm", query.algorithm) +
                member("math", query.math_type) + "}]}";
    }
  }
  called(function, handle->stream, problem);
  return cudnn::kSuccess;
}

}  // namespace

PHANTOM_EXPORT int cudnnRNNForward(const Handle* handle, const void* descriptor, int, const void*, const void* batch) {
  return run(Function::cudnnRNNForward, handle, descriptor, batch);
}

PHANTOM_EXPORT int cudnnRNNBackwardData_v8(const Handle* handle, const void* descriptor, const void*,
                                           const void* batch) {
  return run(Function::cudnnRNNBackwardData_v8, handle, descriptor, batch);
}

PHANTOM_EXPORT int cudnnRNNBackwardWeights_v8(const Handle* handle, const void* descriptor, int, const void*,
                                              const void* batch) {
  return run(Function::cudnnRNNBackwardWeights_v8, handle, descriptor, batch);
}

PHANTOM_EXPORT int cudnnGetRNNWeightSpaceSize(const Handle* handle, const void* descriptor, std::size_t* bytes) {
  note(Function::cudnnGetRNNWeightSpaceSize);
  const Network network(descriptor);
  if (handle == nullptr || bytes == nullptr || !network.known()) return cudnn::kBadParam;
  *bytes = static_cast<std::size_t>(network.weight_bytes());
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnGetRNNWeightParams(const Handle* handle, const void* descriptor, std::int32_t pseudo_layer,
                                           std::size_t, const void* weights, std::int32_t number, void* matrix,
                                           void** matrix_address, void* bias, void** bias_address) {
  note(Function::cudnnGetRNNWeightParams);
  const Network network(descriptor);
  const bool meant = network.known() && pseudo_layer >= 0 && pseudo_layer < network.pseudo_layers() && number >= 0 &&
                     number <= 2 * network.gates();  // a projection may be asked for where there is none
  if (handle == nullptr || !meant) return cudnn::kBadParam;
  auto* const space = static_cast<char*>(const_cast<void*>(weights));
  const int type = network.query().data_type;
  int status = cudnn::kSuccess;
  // Either half may be left out by the caller.
  if (matrix_address != nullptr) *matrix_address = nullptr;
  if (bias_address != nullptr) *bias_address = nullptr;
  if (matrix_address != nullptr && number < network.matrices() && network.matrix(pseudo_layer, number).elements() > 0) {
    const Network::Matrix shape = network.matrix(pseudo_layer, number);
    *matrix_address = space + network.offset_of_matrix(pseudo_layer, number);
    status = describe(matrix, type, shape.rows, shape.columns);
  }
  if (status == cudnn::kSuccess && bias_address != nullptr && network.has_bias(number)) {
    *bias_address = space + network.offset_of_bias(pseudo_layer, number);
    status = describe(bias, type, network.hidden(), 1);
  }
  return status;
}

PHANTOM_EXPORT int cudnnGetRNNTempSpaceSizes(const Handle* handle, const void* descriptor, int forward_mode,
                                             const void* batch, std::size_t* work, std::size_t* reserve) {
  note(Function::cudnnGetRNNTempSpaceSizes);
  const Network network(descriptor);
  if (handle == nullptr || !network.known()) return cudnn::kBadParam;
  RnnQuery query = network.query();
  query.forward_mode = forward_mode;
  if (machine().has(handle->device)) {
    const Device& device = machine().device(handle->device);
    query.device_version = 10 * device.capability();
    query.multiprocessors = device.attribute(kMultiProcessorCount);
  }
  const std::vector<std::int32_t> lengths = read_batch(batch, query);
  if (lengths.empty()) return cudnn::kBadParam;
  RnnSizes sizes{};
  if (!ask_library(query, lengths, &sizes)) sizes = estimate(network, lengths, query.vector_size, query.batch_size);
  if (work != nullptr) *work = sizes.work;
  if (reserve != nullptr) *reserve = forward_mode == kTraining ? sizes.reserve : 0;
  return cudnn::kSuccess;
}

PHANTOM_EXPORT int cudnnBuildRNNDynamic(const Handle* handle, const void*, int) {
  note(Function::cudnnBuildRNNDynamic);
  return handle == nullptr ? cudnn::kBadParam : cudnn::kSuccess;
}
