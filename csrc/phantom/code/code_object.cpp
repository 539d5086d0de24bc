// A cubin is an ELF file: a section .text.NAME for each kernel, .nv.shared.NAME with its static shared memory, and
// attributes in .nv.info (all kernels) and .nv.info.NAME. The numbers of the attributes are those that NVIDIA's
// cuobjdump --dump-elf prints with their names.
#include "code/code_object.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

namespace xmem::phantom {
namespace {

constexpr char kText[] = ".text.";
constexpr char kShared[] = ".nv.shared.";
constexpr char kConstants[] = ".nv.constant3";  // what the program declared __constant__, of all kernels
constexpr char kInfo[] = ".nv.info";
constexpr char kKernelInfo[] = ".nv.info.";

constexpr std::size_t kLeastBytes = 4;  // of anything that is told by its first bytes

// Formats of attributes: the two bytes after format and number are the value, or the length of what follows.
constexpr unsigned char kSizedFormat = 4;
constexpr unsigned char kFrameSize = 0x11;      // EIATTR_FRAME_SIZE: symbol, bytes
constexpr unsigned char kLeastStack = 0x12;     // EIATTR_MIN_STACK_SIZE: symbol, bytes, with those of what it calls
constexpr unsigned char kExternals = 0x0f;      // EIATTR_EXTERNS: symbols
constexpr unsigned char kRegisterCount = 0x2f;  // EIATTR_REGCOUNT: symbol, registers
constexpr unsigned char kMaxThreads = 0x05;     // EIATTR_MAX_THREADS: x, y, z
constexpr unsigned char kThreads = 0x10;        // EIATTR_REQNTID: x, y, z
constexpr unsigned char kParameter = 0x17;      // EIATTR_KPARAM_INFO: index, ordinal and offset, flags and size
constexpr unsigned char kClusterBlocks = 0x3d;  // EIATTR_CTA_PER_CLUSTER: x, y, z
constexpr unsigned kParameterSizeShift = 18;

// From Hopper on, the first KiB of a block's shared memory is the system's, and the section begins with it.
constexpr int kReservesSharedFrom = 90;
constexpr int kReservedSharedBytes = 1024;

// What the driver and the profiler say of smaller kernels, on every architecture since Volta (recorded kernels of V100,
// T4, A100 and H100).
constexpr int kLeastRegisters = 16;

// A kernel that calls a function of the system (a failed assertion does) is linked with it when it is loaded, and then
// takes at least as many registers as the function does: in all recordings of A100 and H100, assertions make 32 of
// less.
constexpr int kSystemFunctionRegisters = 32;

class Elf {
 public:
  // Nothing beyond `readable` is looked at; what a header places there is taken as empty.
  Elf(const void* image, std::size_t readable) : bytes_(static_cast<const char*>(image)), readable_(readable) {
    std::memcpy(&header_, bytes_, sizeof header_);
    if (!lies_within(header_.e_shoff, header_.e_shnum * sizeof(Elf64_Shdr))) return;
    sections_.resize(header_.e_shnum);
    std::memcpy(sections_.data(), bytes_ + header_.e_shoff, sections_.size() * sizeof(Elf64_Shdr));
    for (Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_NOBITS) {
        section.sh_offset = 0;
      } else if (!lies_within(section.sh_offset, section.sh_size)) {
        section.sh_offset = section.sh_size = 0;
      }
    }
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_SYMTAB) symbols_ = &section;
    }
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  const char* name(const Elf64_Shdr& section) const { return text(header_.e_shstrndx, section.sh_name); }
  const char* content(const Elf64_Shdr& section) const { return bytes_ + section.sh_offset; }

  // The architecture is a byte of the flags, whose place changed with version 8 of the interface (CUDA 13).
  Image image() const {
    const unsigned architecture = header_.e_ident[EI_ABIVERSION] >= 8 ? header_.e_flags >> 8 : header_.e_flags;
    Image image{};
    image.form = Image::Form::kCubin;
    image.architecture = static_cast<int>(architecture & 0xff);
    return image;
  }

  // The symbol of a number, with its name; null when there is none.
  const char* symbol(std::uint32_t number, Elf64_Sym* symbol) const {
    if (symbols_ == nullptr || (number + std::uint64_t{1}) * sizeof *symbol > symbols_->sh_size) return nullptr;
    std::memcpy(symbol, content(*symbols_) + number * sizeof *symbol, sizeof *symbol);
    return text(symbols_->sh_link, symbol->st_name);
  }

 private:
  bool lies_within(std::uint64_t offset, std::uint64_t size) const {
    return offset <= readable_ && size <= readable_ - offset;
  }

  const char* text(unsigned table, unsigned offset) const {
    if (table >= sections_.size() || offset >= sections_[table].sh_size) return "";
    if (sections_[table].sh_type == SHT_NOBITS) return "";
    const char* found = content(sections_[table]) + offset;
    return std::memchr(found, '\0', sections_[table].sh_size - offset) != nullptr ? found : "";
  }

  const char* bytes_;
  std::size_t readable_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  const Elf64_Shdr* symbols_ = nullptr;
};

// What follows a prefix; null when the text begins otherwise.
const char* after(const char* text, const char* prefix) {
  const std::size_t length = std::strlen(prefix);
  return std::strncmp(text, prefix, length) == 0 ? text + length : nullptr;
}

// The kernels of a cubin while they are read. Their names live in its text.
class Kernels {
 public:
  Kernels(const Elf& elf, int architecture) : elf_(elf), architecture_(architecture) {
    for (const Elf64_Shdr& section : elf.sections()) {
      const char* name = after(elf.name(section), kText);
      if (name == nullptr || !place_of_.emplace(name, kernels_.size()).second) continue;
      ListedKernel kernel;
      kernel.name = name;
      // Until CUDA 12 the section says it too; from Hopper on it says 0.
      kernel.code.registers = static_cast<int>(section.sh_info >> 24);
      kernels_.push_back(std::move(kernel));
    }
    int constant_bytes = 0;
    for (const Elf64_Shdr& section : elf.sections()) {
      const char* section_name = elf.name(section);
      if (const char* name = after(section_name, kShared)) {
        if (ListedKernel* kernel = named(name)) kernel->code.static_shared_bytes = shared_bytes(section.sh_size);
      } else if (std::strcmp(section_name, kConstants) == 0) {
        constant_bytes = static_cast<int>(section.sh_size);
      } else if (after(section_name, kInfo) != nullptr) {
        read_info(section);
      }
    }
    for (ListedKernel& kernel : kernels_) {
      kernel.code.registers = std::max(kernel.code.registers, kLeastRegisters);
      kernel.code.constant_bytes = constant_bytes;
    }
  }

  std::vector<ListedKernel> take() { return std::move(kernels_); }

 private:
  ListedKernel* named(const char* name) {
    const auto found = place_of_.find(name);
    return found != place_of_.end() ? &kernels_[found->second] : nullptr;
  }

  int shared_bytes(std::uint64_t section_bytes) const {
    const auto bytes = static_cast<int>(section_bytes);
    return architecture_ >= kReservesSharedFrom ? std::max(bytes - kReservedSharedBytes, 0) : bytes;
  }

  void read_info(const Elf64_Shdr& section) {
    if (section.sh_type == SHT_NOBITS) return;
    const char* kernel_name = after(elf_.name(section), kKernelInfo);
    ListedKernel* own = kernel_name != nullptr ? named(kernel_name) : nullptr;
    const char* content = elf_.content(section);
    for (std::size_t at = 0; at + 4 <= section.sh_size;) {
      std::uint16_t length = 0;
      std::memcpy(&length, content + at + 2, sizeof length);
      const bool sized = content[at] == kSizedFormat;
      if (sized && length > section.sh_size - at - 4) return;
      std::uint32_t words[3] = {};
      if (sized) std::memcpy(words, content + at + 4, std::min<std::size_t>(length, sizeof words));
      if (sized) take_attribute(own, static_cast<unsigned char>(content[at + 1]), words);
      at += 4 + (sized ? length : 0U);
    }
  }

  bool is_function_elsewhere(std::uint32_t number) const {
    Elf64_Sym symbol{};
    return number != 0 && elf_.symbol(number, &symbol) != nullptr && symbol.st_shndx == SHN_UNDEF &&
           ELF64_ST_TYPE(symbol.st_info) == STT_FUNC;
  }

  void take_attribute(ListedKernel* own, unsigned char attribute, const std::uint32_t (&words)[3]) {
    if (attribute == kFrameSize || attribute == kLeastStack || attribute == kRegisterCount) {
      Elf64_Sym symbol{};
      const char* symbol_name = elf_.symbol(words[0], &symbol);
      ListedKernel* kernel = symbol_name != nullptr ? named(symbol_name) : nullptr;
      if (kernel == nullptr) return;
      int& said = attribute == kRegisterCount ? kernel->code.registers : kernel->code.local_bytes;
      said = std::max(said, static_cast<int>(words[1]));
    } else if (own == nullptr) {
      return;
    } else if (attribute == kMaxThreads || attribute == kThreads) {
      own->code.most_threads = static_cast<int>(words[0] * words[1] * words[2]);
    } else if (attribute == kClusterBlocks) {
      own->code.cluster_blocks = static_cast<int>(words[0] * words[1] * words[2]);
    } else if (attribute == kExternals) {
      for (const std::uint32_t number : words) {
        if (is_function_elsewhere(number))
          own->code.registers = std::max(own->code.registers, kSystemFunctionRegisters);
      }
    } else if (attribute == kParameter) {
      own->parameters_known = true;
      own->parameters.push_back({words[1] & 0xffff, words[2] >> kParameterSizeShift});
    }
  }

  const Elf& elf_;
  int architecture_;
  std::vector<ListedKernel> kernels_;
  std::unordered_map<std::string_view, std::size_t> place_of_;
};

std::vector<Variable> read_variables(const Elf& elf) {
  std::vector<Variable> variables;
  Elf64_Sym symbol{};
  for (std::uint32_t number = 1; const char* name = elf.symbol(number, &symbol); ++number) {
    if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) variables.push_back({name, symbol.st_size});
  }
  return variables;
}

// Fills in what a cubin lists; false where it is none.
bool read_cubin(CodeObject& read, const void* image, std::size_t readable) {
  if (readable < sizeof(Elf64_Ehdr)) return false;
  const std::size_t bytes = elf_bytes(image);
  if (bytes == 0 || bytes > readable) return false;
  const Elf elf(image, readable);
  read.listed = true;
  read.kernels = Kernels(elf, elf.image().architecture).take();
  read.variables = read_variables(elf);
  if (read.images.empty()) read.images = {elf.image()};
  return true;
}

}  // namespace

std::size_t elf_bytes(const void* image) {
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return 0;
  Elf64_Ehdr header{};
  std::memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  std::size_t bytes = header.e_shoff + std::size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  bytes = std::max(bytes, static_cast<std::size_t>(header.e_phoff) + std::size_t{header.e_phnum} * sizeof(Elf64_Phdr));
  return bytes;
}

CodeObject read_code_object(const void* image, std::size_t readable, int capability) {
  CodeObject read;
  if (readable < kLeastBytes) return read;
  if (!is_fat_binary(image)) {
    read_cubin(read, image, readable);
    return read;
  }
  read.images = read_fat_binary(image, readable).images;
  const Image* chosen = chosen_image(read.images, capability);
  if (chosen == nullptr || chosen->form != Image::Form::kCubin) return read;
  const std::vector<char> unpacked = unpack(*chosen);
  if (!unpacked.empty()) read_cubin(read, unpacked.data(), unpacked.size());
  return read;
}

}  // namespace xmem::phantom
