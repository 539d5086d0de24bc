// How much work area cuSOLVER's functions ask for. Nothing here needs a GPU, nor the phantom's state.
//
// NVIDIA documents none of it. The rules were found in some 22,000 calls, measured on an H200 with CUDA 13.0
// (bench/gpu/results, libraries), and give all of them exactly but those that say "approximate". What they are made of
// can be told from LAPACK's algorithms: copies of matrices, panels of 32 or 128 columns, every array padded to
// 32 numbers.
#pragma once

#include <cstdint>

namespace xmem::phantom::cusolver {

using Size = std::int64_t;

// The numbers of a matrix: functions whose names have S, D, C or Z.
struct Numbers {
  Size bytes = 4;
  bool complex = false;

  constexpr Size real_bytes() const { return complex ? bytes / 2 : bytes; }
};

inline constexpr Numbers kS{4, false};
inline constexpr Numbers kD{8, false};
inline constexpr Numbers kC{8, true};
inline constexpr Numbers kZ{16, true};

// Of a cudaDataType; anything else counts as float.
constexpr Numbers numbers_of(int data_type) {
  switch (data_type) {
    case 1:
      return kD;
    case 4:
      return kC;
    case 5:
      return kZ;
    default:
      return kS;
  }
}

// Functions of 64 bits answer with bytes that include this, beside the elements that those of 32 bits answer with.
inline constexpr Size kHeaderBytes = 128;

// Bytes. The interface of 32 bits has a header more in its LU factorisation.
Size potrf_bytes(bool upper, Size n);
Size getrf_bytes(Numbers numbers, Size m, Size n, Size multiprocessors);

// Elements.
Size potri_elements();
Size sytrf_elements(Numbers numbers, Size n);
Size geqrf_elements(Numbers numbers, Size m, Size n);
Size orgqr_elements(Size m, Size n, Size k);             // n columns of k reflectors' product
Size ormqr_elements(bool left, Size m, Size n, Size k);  // k reflectors applied to a matrix of m rows and n columns
Size syevd_elements(Size n, Size batch = 1);
Size syevj_elements(Size n);
Size syevj_batched_elements(Size n, Size batch);
Size gesvd_elements(Size m, Size n);                       // of 32 bits, which does not know what is asked for
Size gesvd_job_elements(signed char job, Size m, Size n);  // of 64 bits; job: N(one), S(ome) or A(ll) vectors
Size gesvdj_elements(bool economic, Size m, Size n);
Size gesvdj_batched_elements();
Size gesvda_elements(Numbers numbers, Size m, Size n, Size batch);

// Bytes on the device, and on the host (approximate).
Size geev_bytes(Numbers numbers, Size n);
Size geev_host_bytes(Numbers numbers, bool vectors, Size n);

}  // namespace xmem::phantom::cusolver
