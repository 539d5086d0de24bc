// Compiled GPU code: which kernels it has, and what they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "code/fat_binary.hpp"
#include "code/kernel_code.hpp"

namespace xmem::phantom {

struct Variable {
  std::string name;
  std::uint64_t size;
};

struct CodeObject {
  // False for PTX, and for fat binaries none of whose cubins was chosen: any kernel may be in there.
  bool listed = false;
  // What it is compiled for, as far as its headers say; empty: nothing is known.
  std::vector<Image> images;
  std::vector<ListedKernel> kernels;
  std::vector<Variable> variables;
};

// Reads a code object as cuModuleLoadData takes it (a cubin, a fat binary, PTX): without a size, which its headers say;
// of a file, the bytes that were read. Of a fat binary the image that runs on the architecture is read; with 0 none.
CodeObject read_code_object(const void* image, std::size_t readable = SIZE_MAX, int capability = 0);

// The bytes that an ELF image takes, 0 for anything else.
std::size_t elf_bytes(const void* image);

}  // namespace xmem::phantom
