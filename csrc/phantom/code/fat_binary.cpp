#include "code/fat_binary.hpp"

#include <algorithm>
#include <cstring>

#include "code/lz4.hpp"
#include "code/zstd.hpp"

namespace xmem::phantom {
namespace {

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kContainerMagic = 0xba55ed50;

struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* container;
  const void* linked;  // a file's name, or of version 2 what nvlink is to link
};

struct ContainerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t content_bytes;  // of all entries
};

// The part of an entry's header that all versions have.
struct EntryHeader {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t content_bytes;  // with padding: the next entry follows
  std::uint32_t compressed_bytes;
  std::uint32_t options_offset;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t architecture;
  std::uint32_t name_offset;
  std::uint32_t name_bytes;
  std::uint64_t flags;
};
static_assert(sizeof(EntryHeader) == 48);

constexpr std::uint16_t kPtxKind = 1;
constexpr std::uint16_t kElfKind = 2;
constexpr std::uint64_t kLz4Flag = 0x2000;
constexpr std::uint64_t kZstdFlag = 0x8000;
constexpr std::size_t kUnpackedBytesOffset = 56;      // in the header of an entry that is compressed: 64 bits
constexpr std::size_t kMostUnpackedBytes = 1U << 31;  // the largest image of torch 2.6 to 2.12 takes 81 MiB
constexpr std::uint64_t kExactFlag = 0x100000;        // sm_90a
constexpr std::uint64_t kFamilyFlag = 0x200000;       // sm_100f

template <typename Type>
Type read(const void* address) {
  Type value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

Image image_of(const EntryHeader& entry, const char* header) {
  Image image{};
  image.form = entry.kind == kPtxKind ? Image::Form::kPtx : Image::Form::kCubin;
  image.architecture = static_cast<int>(entry.architecture);
  image.reach = Image::Reach::kPortable;
  if ((entry.flags & kFamilyFlag) != 0) image.reach = Image::Reach::kFamily;
  if ((entry.flags & kExactFlag) != 0) image.reach = Image::Reach::kExact;
  image.content = header + entry.header_bytes;
  image.content_bytes = image.unpacked_bytes = entry.content_bytes;
  if ((entry.flags & (kLz4Flag | kZstdFlag)) == 0) return image;
  image.packing = (entry.flags & kZstdFlag) != 0 ? Image::Packing::kZstd : Image::Packing::kLz4;
  image.content_bytes = std::min<std::uint64_t>(entry.compressed_bytes, entry.content_bytes);
  image.unpacked_bytes = 0;
  if (entry.header_bytes >= kUnpackedBytesOffset + sizeof(std::uint64_t)) {
    image.unpacked_bytes = read<std::uint64_t>(header + kUnpackedBytesOffset);
  }
  return image;
}

FatBinary read_container(const char* bytes, std::size_t readable) {
  FatBinary found;
  if (readable < sizeof(ContainerHeader)) return found;
  const auto header = read<ContainerHeader>(bytes);
  if (header.magic != kContainerMagic || header.header_bytes < sizeof header || header.header_bytes > readable) {
    return found;
  }
  readable = std::min<std::uint64_t>(readable - header.header_bytes, header.content_bytes);
  const char* at = bytes + header.header_bytes;
  while (readable >= sizeof(EntryHeader)) {
    const auto entry = read<EntryHeader>(at);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > readable) return {};
    if (entry.content_bytes > readable - entry.header_bytes) return {};
    if (entry.kind == kPtxKind || entry.kind == kElfKind) found.images.push_back(image_of(entry, at));
    at += entry.header_bytes + entry.content_bytes;
    readable -= entry.header_bytes + entry.content_bytes;
  }
  found.known = true;
  return found;
}

// Tegra's cubins run on no card, and a card's on no Tegra ("Binary Compatibility").
bool of_tegra(int architecture) {
  constexpr int kTegra[] = {32, 53, 62, 72, 87, 101, 110};
  return std::find(std::begin(kTegra), std::end(kTegra), architecture) != std::end(kTegra);
}

bool runs_on(const Image& image, int capability) {
  if (image.architecture == capability) return true;
  if (image.architecture > capability || image.reach == Image::Reach::kExact) return false;
  const bool same_major = image.architecture / 10 == capability / 10;
  if (image.form == Image::Form::kPtx) return image.reach == Image::Reach::kPortable || same_major;
  return same_major && !of_tegra(image.architecture) && !of_tegra(capability);
}

}  // namespace

bool is_fat_binary(const void* image) {
  const auto magic = read<std::uint32_t>(image);
  return magic == kWrapperMagic || magic == kContainerMagic;
}

FatBinary read_fat_binary(const void* binary, std::size_t readable) {
  if (binary == nullptr || readable < sizeof(std::uint32_t)) return {};
  if (read<std::uint32_t>(binary) != kWrapperMagic) return read_container(static_cast<const char*>(binary), readable);
  if (readable < sizeof(Wrapper)) return {};
  const auto wrapper = read<Wrapper>(binary);
  // It points into the program's own image, of which nothing but the header says how long it is.
  return wrapper.container != nullptr ? read_container(static_cast<const char*>(wrapper.container), SIZE_MAX)
                                      : FatBinary{};
}

CodeVersions choose_image(const std::vector<Image>& images, int capability) {
  const Image* chosen = chosen_image(images, capability);
  if (chosen == nullptr) return {};
  return {chosen->form == Image::Form::kCubin ? chosen->architecture : capability, chosen->architecture};
}

const Image* chosen_image(const std::vector<Image>& images, int capability) {
  for (const Image::Form form : {Image::Form::kCubin, Image::Form::kPtx}) {
    const Image* best = nullptr;
    for (const Image& image : images) {
      if (image.form != form || !runs_on(image, capability)) continue;
      const bool closer = best == nullptr || image.architecture > best->architecture ||
                          (image.architecture == best->architecture && image.reach > best->reach);
      if (closer) best = &image;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

std::vector<char> unpack(const Image& image) {
  if (image.content == nullptr || image.unpacked_bytes == 0 || image.unpacked_bytes > kMostUnpackedBytes) return {};
  if (image.packing == Image::Packing::kNone) return {image.content, image.content + image.content_bytes};
  std::vector<char> unpacked(image.unpacked_bytes);
  const auto unpack_by = image.packing == Image::Packing::kZstd ? unpack_zstd : unpack_lz4;
  if (!unpack_by(image.content, image.content_bytes, unpacked.data(), unpacked.size())) return {};
  return unpacked;
}

}  // namespace xmem::phantom
