// What a read from the device gives: zeros, for nothing is computed.
//
// One exception keeps programs that send small facts around alive (DDP compares the shapes of its parameters and the
// order of its buckets this way): what the host wrote comes back, also through copies and collectives, as long as no
// kernel was launched in between, for a kernel may have written anything anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xmem::phantom {

void host_wrote(void* device_address, const void* bytes, std::size_t size);
void device_copied(void* target, const void* source, std::size_t size);
void device_cleared(void* device_address, std::size_t size);
void kernel_launched();

// Fills `bytes` with what the device holds at the address.
void read_device(void* bytes, const void* device_address, std::size_t size);

// What the host wrote to all of a range; false where that is not known.
bool written_by_host(const void* device_address, void* bytes, std::size_t size);

// Reads of at most 8 bytes by this thread give `value` as an integer, while `given`.
void answer_reads(bool given, std::int64_t value);

// cudaMemcpy in all directions; `size` bytes, told apart by the addresses.
void copy(void* target, const void* source, std::size_t size);

}  // namespace xmem::phantom
