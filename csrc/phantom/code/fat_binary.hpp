// Fat binaries: code compiled for several architectures, of which the driver takes the one that suits the card.
//
// nvcc's host code passes a wrapper (crt/fatbinary_section.h), which points to a container: a header, and entries with
// a header each. What an entry holds may be compressed (LZ4, from CUDA 13 on zstd); its header never is, so that an
// image is chosen without unpacking any. The layout and the flags are those that CUDA 12.4's and 13.0's `fatbinary`
// write and their `cuobjdump` prints.
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

  enum class Packing { kNone, kLz4, kZstd };

  Form form;
  int architecture;
  Reach reach;
  Packing packing = Packing::kNone;
  const char* content = nullptr;  // in the fat binary; null where the image was not read from one
  std::size_t content_bytes = 0;  // as it is packed
  std::size_t unpacked_bytes = 0;
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

// The image that was chosen: of several for one architecture, the one that was compiled most closely for it (sm_90a
// before sm_90). Null where none runs.
const Image* chosen_image(const std::vector<Image>& images, int capability);

// What an image holds, unpacked; empty where that cannot be done.
std::vector<char> unpack(const Image& image);

}  // namespace xmem::phantom
