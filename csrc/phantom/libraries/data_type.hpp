// cudaDataType_t: the numbers of the types, and how many bytes a value takes.
#pragma once

#include <cstddef>

namespace xmem::phantom {

// 0 for a number that is no type; types of four bits count as one byte.
constexpr std::size_t bytes_of(int data_type) {
  switch (data_type) {
    case 2:   // CUDA_R_16F
    case 14:  // CUDA_R_16BF
    case 20:  // CUDA_R_16I
    case 22:  // CUDA_R_16U
      return 2;
    case 0:   // CUDA_R_32F
    case 6:   // CUDA_C_16F
    case 10:  // CUDA_R_32I
    case 12:  // CUDA_R_32U
    case 15:  // CUDA_C_16BF
    case 21:  // CUDA_C_16I
    case 23:  // CUDA_C_16U
      return 4;
    case 1:   // CUDA_R_64F
    case 4:   // CUDA_C_32F
    case 11:  // CUDA_C_32I
    case 13:  // CUDA_C_32U
    case 24:  // CUDA_R_64I
    case 26:  // CUDA_R_64U
      return 8;
    case 5:   // CUDA_C_64F
    case 25:  // CUDA_C_64I
    case 27:  // CUDA_C_64U
      return 16;
    case 7:  // CUDA_C_8I
    case 9:  // CUDA_C_8U
      return 2;
    default:  // of eight bits and fewer: integers and the floating-point formats from 28 on
      return data_type < 0 ? 0 : 1;
  }
}

}  // namespace xmem::phantom
