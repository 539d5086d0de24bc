// How large the work area of a cuFFT plan is, and which plans cuFFT refuses: rules without any state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace xmem::phantom {

struct Transform {
  int rank = 1;                                // 1 to 3
  std::array<std::int64_t, 3> sizes{1, 1, 1};  // of the real or complex signal, the last one contiguous
  bool real = false;                           // on one side: half of the spectrum is kept
  bool strided = false;                        // neighbours in the last dimension are not adjacent
  std::size_t complex_bytes = 8;               // 4 for halves, 16 for doubles
  std::int64_t batch = 1;
};

// 0, or the cufftResult with which cuFFT refuses a plan of numbers of 16 bits.
int refusal_of(const Transform& transform);

std::size_t work_bytes_of(const Transform& transform);

}  // namespace xmem::phantom
