#include "libraries/cudnn/planning/recurrent_spaces.hpp"

#include <dlfcn.h>

#include <cstddef>

#include "libraries/cudnn/status.hpp"

namespace xmem::phantom::cudnn {
namespace {

// Where a handle has its multiprocessors, in 9.1 to 9.28 (described_handle.cpp).
constexpr std::size_t kMultiprocessorsPlace = 28 / sizeof(std::int32_t);

// The version lies 96 bytes into a handle in 9.1 to 9.10, 104 in 9.15 to 9.20 and 108 in 9.28: members were added
// before it. Only there does it change an answer.
constexpr std::size_t kFirstPlace = 64 / sizeof(std::int32_t);
constexpr std::size_t kLastPlace = 160 / sizeof(std::int32_t);

// Of an LSTM that every device from 6.0 on supports, and none before: with the kernels for a small hidden state.
constexpr std::int32_t kSomeVersion = 900;
constexpr RnnQuery kSmallLstm = [] {
  constexpr int kPersistSmallHidden = 3, kLstm = 2, kBothBiases = 2;
  RnnQuery query{};
  query.algorithm = kPersistSmallHidden;
  query.cell = kLstm;
  query.bias = kBothBiases;
  query.input_size = query.hidden_size = query.projection_size = query.vector_size = 64;
  query.layers = query.longest = query.batch_size = 1;
  query.forward_mode = 1;
  return query;
}();

}  // namespace

template <typename... Arguments>
int RecurrentSpaces::call(const char* name, Arguments... arguments) const {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
  return function == nullptr ? static_cast<int>(kNotSupported) : function(arguments...);
}

RecurrentSpaces::RecurrentSpaces(void* library) : library_(library) {
  const std::int32_t one_step = 1;
  for (std::size_t place = kFirstPlace; place < kLastPlace && device_version_ == nullptr; ++place) {
    RnnSizes sizes{};
    handle_[place] = kSomeVersion;
    if (ask_for_device(kSmallLstm, &one_step, &sizes) == kSuccess) device_version_ = &handle_[place];
    handle_[place] = 0;
  }
}

int RecurrentSpaces::ask(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes) {
  if (device_version_ != nullptr) {
    *device_version_ = query.device_version;
    handle_[kMultiprocessorsPlace] = query.multiprocessors;
  }
  return ask_for_device(query, lengths, sizes);
}

int RecurrentSpaces::ask_for_device(const RnnQuery& query, const std::int32_t* lengths, RnnSizes* sizes) {
  void* const handle = handle_.data();
  void *dropout = nullptr, *network = nullptr, *data = nullptr;
  call("cudnnCreateDropoutDescriptor", &dropout);
  call("cudnnCreateRNNDescriptor", &network);
  call("cudnnCreateRNNDataDescriptor", &data);
  if (query.dropout > 0) {
    static char states[16];
    call("cudnnRestoreDropoutDescriptor", dropout, handle, query.dropout, static_cast<void*>(states), sizeof states,
         0ULL);
  }
  const double padding = 0;
  int status = call("cudnnSetRNNDescriptor_v8", network, query.algorithm, query.cell, query.bias, query.direction,
                    query.input_mode, query.data_type, query.math_precision, query.math_type, query.input_size,
                    query.hidden_size, query.projection_size, query.layers, dropout, query.flags);
  if (status == kSuccess) {
    status = call("cudnnSetRNNDataDescriptor", data, query.data_type, query.layout, query.longest, query.batch_size,
                  query.vector_size, lengths, static_cast<const void*>(&padding));
  }
  if (status == kSuccess) {
    call("cudnnGetRNNTempSpaceSizes", handle, network, query.forward_mode, data, &sizes->work, &sizes->reserve);
    if (sizes->work == 0) status = kNotSupported;
  }
  call("cudnnDestroyRNNDataDescriptor", data);
  call("cudnnDestroyRNNDescriptor", network);
  call("cudnnDestroyDropoutDescriptor", dropout);
  return status;
}

}  // namespace xmem::phantom::cudnn
