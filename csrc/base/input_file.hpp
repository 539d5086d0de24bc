// Files to read, as each operating system opens them. What differs between systems about files is in input_file.cpp.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace xmem {

using InputFile = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// Opens a file for reading bytes; null where that fails, with the reason in errno. The path is UTF-8.
InputFile open_input(const std::string& path);

// What the file system says; -1 for what is no regular file.
std::int64_t size_of(std::FILE* file);

}  // namespace xmem
