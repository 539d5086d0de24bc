// What the phantom and its cuDNN helper process say to each other over a socket: requests of a fixed head and a
// payload. The helper keeps the descriptors, under numbers that the phantom gives them, so only questions are answered:
// a create, a set or a destroy that fails is told by the finalize that follows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xmem::phantom::cudnn {

enum class Operation : std::int32_t {
  kCreate,    // kind: descriptor type
  kDestroy,   //
  kSet,       // kind: attribute; payload: the elements
  kGet,       // kind: attribute; payload: the elements, where they are descriptors. Answered
  kFinalize,  // answered
  kError,     // answered with cudnnGetLastErrorString
  kVersion,   // answered with the version as count: the first request, and the proof that the library works here
  kRnnSizes,  // payload: RnnQuery. Answered with RnnSizes
  kHandle,    // payload: a description of a device; makes a handle of it. Answered
};

struct Request {
  Operation operation;
  std::int32_t kind;
  std::int32_t type;  // cudnnBackendAttributeType_t
  std::int32_t payload_bytes;
  std::uint64_t descriptor;
  std::int64_t count;
};

struct Reply {
  std::int32_t status;
  std::int32_t payload_bytes;
  std::int64_t count;
};

// A recurrent network as cudnnSetRNNDescriptor_v8 and cudnnSetRNNDataDescriptor take it; the lengths of the sequences
// follow, batch_size numbers of 32 bits.
struct RnnQuery {
  std::int32_t algorithm, cell, bias, direction, input_mode, data_type, math_precision, math_type;
  std::int32_t input_size, hidden_size, projection_size, layers;
  std::uint32_t flags;
  std::int32_t layout, longest, batch_size, vector_size;
  std::int32_t forward_mode;
  float dropout;                // between the layers
  std::int32_t device_version;  // 900 for compute capability 9.0
  std::int32_t multiprocessors;
};

struct RnnSizes {
  std::uint64_t work;
  std::uint64_t reserve;
};

// Of one element of an attribute: handles, numbers of 64 bits and pointers are 8 bytes long, fractions two such
// numbers, enumerations 4, booleans and characters 1.
enum AttributeType : std::int32_t {
  kHandleType = 0,
  kBooleanType = 2,
  kInt64Type = 3,
  kDoubleType = 5,
  kPointerType = 6,
  kDescriptorType = 15,
  kCharType = 24,
  kFractionType = 26,
};

constexpr std::size_t element_bytes(int type) {
  switch (type) {
    case kBooleanType:
    case kCharType:
      return 1;
    case kHandleType:
    case kInt64Type:
    case kDoubleType:
    case kPointerType:
    case kDescriptorType:
      return 8;
    case kFractionType:
      return 16;
    default:
      return 4;
  }
}

}  // namespace xmem::phantom::cudnn
