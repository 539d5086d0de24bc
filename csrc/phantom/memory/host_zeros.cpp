#include "memory/host_zeros.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "machine/calls.hpp"

namespace xmem::phantom {
namespace {

// Below, writing is faster than asking the system.
constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

// MADV_DONTNEED brings zeros in private anonymous memory alone: elsewhere the file or the shared memory shows again.
// MADV_FREE tells them apart, since the kernel refuses it for anything else (EINVAL); what it may drop is ours to drop.
// Locked pages are refused by both.
bool give_back(void* page, std::size_t size) {
  const int kept_errno = errno;
  const bool given = madvise(page, size, MADV_FREE) == 0 && madvise(page, size, MADV_DONTNEED) == 0;
  errno = kept_errno;
  return given;
}

}  // namespace

void write_zeros(void* bytes, std::size_t size) {
  static const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes), end = begin + size;
  const std::uintptr_t first = (begin + page_bytes - 1) / page_bytes * page_bytes;
  const std::uintptr_t last = end / page_bytes * page_bytes;
  if (size < kLargeBytes || !give_back(reinterpret_cast<void*>(first), last - first)) {
    std::memset(bytes, 0, size);
    return;
  }
  std::memset(bytes, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

}  // namespace xmem::phantom

// For the Python side of a capture, which makes tensors without computing them:
// capture/child/xmem_child/on_phantom/host_work.py.
PHANTOM_EXPORT void xmem_phantom_write_zeros(void* bytes, std::size_t size) {
  xmem::phantom::write_zeros(bytes, size);
}
