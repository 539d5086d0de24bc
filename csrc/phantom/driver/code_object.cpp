// A cubin is an ELF file: a section .text.NAME for each kernel, .nv.shared.NAME with its static shared memory, and
// attributes in .nv.info (all kernels) and .nv.info.NAME. The numbers of the attributes are those that NVIDIA's
// cuobjdump --dump-elf prints with their names.
#include "driver/code_object.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace xmem::phantom {
namespace {

constexpr char kText[] = ".text.";
constexpr char kShared[] = ".nv.shared.";
constexpr char kInfo[] = ".nv.info";
constexpr char kKernelInfo[] = ".nv.info.";

constexpr std::size_t kLeastBytes = 4;  // of anything that is told by its first bytes

// Formats of attributes: the two bytes after format and number are the value, or the length of what follows.
constexpr unsigned char kSizedFormat = 4;
constexpr unsigned char kFrameSize = 0x11;      // EIATTR_FRAME_SIZE: symbol, bytes
constexpr unsigned char kRegisterCount = 0x2f;  // EIATTR_REGCOUNT: symbol, registers
constexpr unsigned char kMaxThreads = 0x05;     // EIATTR_MAX_THREADS: x, y, z
constexpr unsigned char kParameter = 0x17;      // EIATTR_KPARAM_INFO: index, ordinal and offset, flags and size
constexpr unsigned kParameterSizeShift = 18;

class Elf {
 public:
  explicit Elf(const void* image) : bytes_(static_cast<const char*>(image)) {
    std::memcpy(&header_, bytes_, sizeof header_);
    sections_.resize(header_.e_shnum);
    std::memcpy(sections_.data(), bytes_ + header_.e_shoff, sections_.size() * sizeof(Elf64_Shdr));
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  const char* name(const Elf64_Shdr& section) const { return text(header_.e_shstrndx, section.sh_name); }
  const char* content(const Elf64_Shdr& section) const { return bytes_ + section.sh_offset; }

  // The architecture is a byte of the flags, whose place changed with version 8 of the interface (CUDA 13).
  Image image() const {
    const unsigned architecture = header_.e_ident[EI_ABIVERSION] >= 8 ? header_.e_flags >> 8 : header_.e_flags;
    return {Image::Form::kCubin, static_cast<int>(architecture & 0xff), Image::Reach::kPortable};
  }

  // The symbol of a number, with its name; null when there is none.
  const char* symbol(std::uint32_t number, Elf64_Sym* symbol) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB || (number + std::uint64_t{1}) * sizeof *symbol > section.sh_size) continue;
      std::memcpy(symbol, content(section) + number * sizeof *symbol, sizeof *symbol);
      return text(section.sh_link, symbol->st_name);
    }
    return nullptr;
  }

 private:
  const char* text(unsigned table, unsigned offset) const {
    return table < sections_.size() ? bytes_ + sections_[table].sh_offset + offset : "";
  }

  const char* bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
};

// What follows a prefix; null when the text begins otherwise.
const char* after(const char* text, const char* prefix) {
  const std::size_t length = std::strlen(prefix);
  return std::strncmp(text, prefix, length) == 0 ? text + length : nullptr;
}

Kernel* kernel_named(std::vector<Kernel>& kernels, const char* name) {
  const auto found = std::find_if(kernels.begin(), kernels.end(), [name](const Kernel& k) { return k.name == name; });
  return found != kernels.end() ? &*found : nullptr;
}

// Calls with the number of every sized attribute of a section and its words.
template <typename Take>
void read_attributes(const char* content, std::size_t size, Take take) {
  for (std::size_t at = 0; at + 4 <= size;) {
    std::uint16_t length = 0;
    std::memcpy(&length, content + at + 2, sizeof length);
    const bool sized = content[at] == kSizedFormat;
    std::uint32_t words[3] = {};
    if (sized) std::memcpy(words, content + at + 4, std::min<std::size_t>(length, sizeof words));
    if (sized) take(static_cast<unsigned char>(content[at + 1]), words);
    at += 4 + (sized ? length : 0U);
  }
}

void read_info(const Elf& elf, const Elf64_Shdr& section, std::vector<Kernel>& kernels) {
  const char* kernel_name = after(elf.name(section), kKernelInfo);
  Kernel* own = kernel_name != nullptr ? kernel_named(kernels, kernel_name) : nullptr;
  read_attributes(elf.content(section), section.sh_size, [&](unsigned char attribute, const std::uint32_t* words) {
    if (attribute == kMaxThreads) {
      if (own != nullptr) own->most_threads = static_cast<int>(words[0] * words[1] * words[2]);
    } else if (attribute == kParameter) {
      if (own == nullptr) return;
      own->parameters_known = true;
      own->parameters.push_back({words[1] & 0xffff, words[2] >> kParameterSizeShift});
    } else if (attribute == kFrameSize || attribute == kRegisterCount) {
      Elf64_Sym symbol{};
      const char* symbol_name = elf.symbol(words[0], &symbol);
      Kernel* kernel = symbol_name != nullptr ? kernel_named(kernels, symbol_name) : nullptr;
      if (kernel == nullptr) return;
      (attribute == kFrameSize ? kernel->local_bytes : kernel->registers) = static_cast<int>(words[1]);
    }
  });
}

std::vector<Variable> read_variables(const Elf& elf) {
  std::vector<Variable> variables;
  Elf64_Sym symbol{};
  for (std::uint32_t number = 1; const char* name = elf.symbol(number, &symbol); ++number) {
    if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT) variables.push_back({name, symbol.st_size});
  }
  return variables;
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

CodeObject read_code_object(const void* image, std::size_t readable) {
  CodeObject read;
  if (readable < kLeastBytes) return read;
  if (is_fat_binary(image)) read.images = read_fat_binary(image, readable).images;
  if (readable < sizeof(Elf64_Ehdr)) return read;
  if (const std::size_t bytes = elf_bytes(image); bytes == 0 || bytes > readable) return read;
  const Elf elf(image);
  read.images = {elf.image()};
  read.listed = true;
  for (const Elf64_Shdr& section : elf.sections()) {
    const char* name = after(elf.name(section), kText);
    if (name == nullptr) continue;
    Kernel kernel;
    kernel.name = name;
    if (const auto registers = section.sh_info >> 24; registers > 0) kernel.registers = static_cast<int>(registers);
    read.kernels.push_back(std::move(kernel));
  }
  for (const Elf64_Shdr& section : elf.sections()) {
    if (const char* name = after(elf.name(section), kShared)) {
      Kernel* kernel = kernel_named(read.kernels, name);
      if (kernel != nullptr) kernel->static_shared_bytes = static_cast<int>(section.sh_size);
    } else if (after(elf.name(section), kInfo) != nullptr) {
      read_info(elf, section, read.kernels);
    }
  }
  read.variables = read_variables(elf);
  return read;
}

}  // namespace xmem::phantom
