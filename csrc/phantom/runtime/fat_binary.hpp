// Fat binaries: code compiled for several architectures, of which the driver takes the one that suits the card.
//
// nvcc's host code passes a wrapper (crt/fatbinary_section.h), which points to a container: a header, and entries with
// a header each. What an entry holds may be compressed (LZ4, from CUDA 13 on zstd); its header never is, and no more is
// read here. The layout and the flags are those that CUDA 12.4's and 13.0's `fatbinary` write and their `cuobjdump`
// prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xmem::phantom {

// An architecture as CUDA writes it: 10 * major + minor.

struct Image {
  enum class Form { kPtx, kCubin };
  // What it runs on beside its own architecture: all that its form allows, the rest of its family (sm_100f), nothing
  // (sm_90a).
  enum class Reach { kPortable, kFamily, kExact };

  Form form;
  int architecture;
  Reach reach;
};

struct FatBinary {
  // Whether it could be read; of one that could not, nothing is said.
  bool known = false;
  std::vector<Image> images;  // in their order; code for the linker (LTO) is not among them
};

// Reads what a wrapper or a container holds. Nothing beyond `readable` bytes, and nothing beyond what the container's
// header states, is looked at.
FatBinary read_fat_binary(const void* binary, std::size_t readable = SIZE_MAX);

// Whether an image begins as a wrapper or a container does.
bool is_fat_binary(const void* image);

// What cudaFuncGetAttributes says of a kernel's code; both 0 where no image runs on the card.
struct CodeVersions {
  int binary = 0;  // of the cubin; of PTX, which is compiled for the card, the card's own
  int ptx = 0;     // what the image was compiled from; a cubin's is taken as its own architecture

  bool runs() const { return binary > 0; }
};

// The driver's choice: the highest cubin of the card's major version that is not above it, else the highest PTX that is
// not above it ("Application Compatibility", CUDA C++ Programming Guide).
CodeVersions choose_image(const std::vector<Image>& images, int capability);

}  // namespace xmem::phantom
