// Device addresses: a range of this process's address space that is reserved and never mapped, a part for each device.
// "Is this a device pointer" is a comparison, and code that follows one by mistake faults as it would on a real
// machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xmem::phantom {

inline constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;  // physical page of every GPU since Pascal

constexpr std::uint64_t whole_pages(std::uint64_t size) {
  return (size + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The device that an address belongs to, -1 for one of the host.
int device_of(const void* address);

// Free address ranges of one device: whole chunks from the top down, whose rests serve later requests, as
// csrc/allocators/device_memory has it in descending order.
class AddressRanges {
 public:
  explicit AddressRanges(int device);

  // 0 when nothing of this length is left.
  std::uint64_t reserve(std::uint64_t length, std::uint64_t alignment = kPageBytes);
  void release(std::uint64_t address, std::uint64_t length);

 private:
  struct Gap {
    std::uint64_t begin;
    std::uint64_t end;
  };
  // Takes `length` bytes at `begin` out of a gap.
  std::uint64_t cut(std::size_t place, std::uint64_t begin, std::uint64_t length);

  std::vector<Gap> gaps_;  // ascending and never touching
};

}  // namespace xmem::phantom
