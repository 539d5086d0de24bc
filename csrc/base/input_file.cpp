#include "base/input_file.hpp"

#include <sys/stat.h>

#if defined(_WIN32)
#include <filesystem>
#endif

namespace xmem {

#if defined(_WIN32)

// A path of `char` would be read in the code page of the user's language, and sizes would end at 2 GiB.
InputFile open_input(const std::string& path) {
  const std::filesystem::path wide(std::u8string(path.begin(), path.end()));
  return {_wfopen(wide.c_str(), L"rb"), &std::fclose};
}

std::int64_t size_of(std::FILE* file) {
  struct _stat64 status{};
  return _fstat64(_fileno(file), &status) == 0 && (status.st_mode & _S_IFMT) == _S_IFREG ? status.st_size : -1;
}

#else

InputFile open_input(const std::string& path) {
  return {std::fopen(path.c_str(), "rb"), &std::fclose};
}

std::int64_t size_of(std::FILE* file) {
  struct stat status{};
  return ::fstat(::fileno(file), &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : -1;
}

#endif

}  // namespace xmem
