// The driver's virtual memory: address ranges without memory, memory without addresses, and mappings of one into the
// other. PyTorch's expandable segments are made of it.
//
// Memory is taken when its handle is made and given back when neither a handle nor a mapping holds it any more.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "abi/cuda_types.hpp"
#include "abi/driver_types.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/address_space.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace {

using Handle = std::uint64_t;  // CUmemGenericAllocationHandle

struct Physical {
  AllocationProperties properties;
  std::uint64_t size;
  bool imported;  // another process of the run took the pages
  unsigned handles = 1;
  unsigned mappings = 0;
};

struct Mapping {
  std::uint64_t size;
  Handle handle;
  int access = 0;  // flags of cuMemSetAccess for the device that the memory is on
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<Handle, Physical> physical;
  std::map<DeviceAddress, std::uint64_t> reservations;  // address -> size
  std::map<DeviceAddress, Mapping> mappings;            // by address; never overlapping
  Handle next_handle = 0x70000001;
};

VirtualMemory& virtual_memory() {
  static auto* kept = new VirtualMemory();  // never destroyed: segments are unmapped from exit handlers
  return *kept;
}

bool is_whole_pages(std::uint64_t size) {
  return size != 0 && size % kPageBytes == 0;
}

// Gives the memory back once nothing holds it. Callers hold the lock.
void drop_if_unheld(VirtualMemory& kept, std::map<Handle, Physical>::iterator found) {
  const Physical& memory = found->second;
  if (memory.handles > 0 || memory.mappings > 0) return;
  if (!memory.imported) give_pages(memory.properties.location.id, memory.size);
  kept.physical.erase(found);
}

// The entry of a map from beginnings to ranges that contains an address, or the end.
template <typename Map, typename SizeOf>
typename Map::iterator range_of(Map& ranges, DeviceAddress address, SizeOf size_of) {
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return ranges.end();
  --found;
  return address < found->first + size_of(found->second) ? found : ranges.end();
}

std::map<DeviceAddress, Mapping>::iterator mapping_of(VirtualMemory& kept, DeviceAddress address) {
  return range_of(kept.mappings, address, [](const Mapping& mapping) { return mapping.size; });
}

bool any_mapping_in(const VirtualMemory& kept, DeviceAddress begin, DeviceAddress end) {
  const auto after = kept.mappings.lower_bound(end);
  if (after == kept.mappings.begin()) return false;
  const auto last = std::prev(after);
  return last->first + last->second.size > begin;
}

// Whether mappings begin at `begin`, end at `end` and leave no gap: what may be unmapped, or be given an access.
bool covered_by_mappings(const VirtualMemory& kept, DeviceAddress begin, DeviceAddress end) {
  DeviceAddress reached = begin;
  for (auto mapping = kept.mappings.find(begin); mapping != kept.mappings.end() && reached < end; ++mapping) {
    if (mapping->first != reached) return false;
    reached += mapping->second.size;
  }
  return reached == end;
}

// What a shared file descriptor holds: who exports what.
struct Exported {
  char magic[8];
  std::uint64_t size;
  unsigned card;
  AllocationProperties properties;
};
constexpr char kExportedMagic[8] = {'x', 'm', 'e', 'm', 'v', 'm', 'e', 'x'};

}  // namespace

PHANTOM_EXPORT int cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, int) {
  note(Function::cuMemGetAllocationGranularity);
  if (bytes == nullptr || properties == nullptr) return kInvalidValue;
  *bytes = kPageBytes;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemAddressReserve(DeviceAddress* address, std::size_t size, std::size_t alignment,
                                       DeviceAddress wanted, unsigned long long) {
  note(Function::cuMemAddressReserve);
  if (address == nullptr || !is_whole_pages(size)) return kInvalidValue;
  // A wanted address is a hint; the device's part of the address space is what it helps to find.
  const int hinted = device_of(reinterpret_cast<const void*>(wanted));
  void* begin = nullptr;
  const int error = reserve_addresses(hinted >= 0 ? hinted : current_device(), size, alignment, &begin);
  if (error != kSuccess) return error;
  *address = reinterpret_cast<DeviceAddress>(begin);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  kept.reservations[*address] = size;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemAddressFree(DeviceAddress address, std::size_t size) {
  note(Function::cuMemAddressFree);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.reservations.find(address);
  if (found == kept.reservations.end() || found->second != size) return kInvalidValue;
  if (any_mapping_in(kept, address, address + size)) return kInvalidValue;
  kept.reservations.erase(found);
  return release_addresses(reinterpret_cast<void*>(address), size);
}

PHANTOM_EXPORT int cuMemCreate(Handle* handle, std::size_t size, const AllocationProperties* properties,
                               unsigned long long) {
  note(Function::cuMemCreate);
  if (handle == nullptr || properties == nullptr || !is_whole_pages(size)) return kInvalidValue;
  if (properties->location.type != kLocationDevice) return refuse(Function::cuMemCreate, kNotSupported);
  if ((properties->requested_handle_types & kHandleFabric) != 0) return refuse(Function::cuMemCreate, kNotSupported);
  if (!machine().has(properties->location.id)) return kInvalidDevice;
  if (const int error = take_pages(properties->location.id, size); error != kSuccess) return error;
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  *handle = kept.next_handle++;
  kept.physical[*handle] = Physical{*properties, size, false};
  return kSuccess;
}

PHANTOM_EXPORT int cuMemRelease(Handle handle) {
  note(Function::cuMemRelease);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.physical.find(handle);
  if (found == kept.physical.end() || found->second.handles == 0) return kInvalidValue;
  --found->second.handles;
  drop_if_unheld(kept, found);
  return kSuccess;
}

PHANTOM_EXPORT int cuMemRetainAllocationHandle(Handle* handle, void* address) {
  note(Function::cuMemRetainAllocationHandle);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto mapping = mapping_of(kept, reinterpret_cast<DeviceAddress>(address));
  if (handle == nullptr || mapping == kept.mappings.end()) return kInvalidValue;
  *handle = mapping->second.handle;
  ++kept.physical[*handle].handles;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties, Handle handle) {
  note(Function::cuMemGetAllocationPropertiesFromHandle);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.physical.find(handle);
  if (properties == nullptr || found == kept.physical.end()) return kInvalidValue;
  *properties = found->second.properties;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemMap(DeviceAddress address, std::size_t size, std::size_t offset, Handle handle,
                            unsigned long long) {
  note(Function::cuMemMap);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto memory = kept.physical.find(handle);
  if (memory == kept.physical.end() || !is_whole_pages(size) || offset % kPageBytes != 0) return kInvalidValue;
  if (offset + size > memory->second.size) return kInvalidValue;
  const auto reserved = range_of(kept.reservations, address, [](std::uint64_t bytes) { return bytes; });
  if (reserved == kept.reservations.end() || address + size > reserved->first + reserved->second) return kInvalidValue;
  if (any_mapping_in(kept, address, address + size)) return kInvalidValue;
  kept.mappings[address] = {size, handle};
  ++memory->second.mappings;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemUnmap(DeviceAddress address, std::size_t size) {
  note(Function::cuMemUnmap);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  if (!covered_by_mappings(kept, address, address + size)) return kInvalidValue;
  device_cleared(reinterpret_cast<void*>(address), size);
  for (auto mapping = kept.mappings.find(address); mapping != kept.mappings.end() && mapping->first < address + size;) {
    const auto memory = kept.physical.find(mapping->second.handle);
    --memory->second.mappings;
    drop_if_unheld(kept, memory);
    mapping = kept.mappings.erase(mapping);
  }
  return kSuccess;
}

PHANTOM_EXPORT int cuMemSetAccess(DeviceAddress address, std::size_t size, const AccessDescription* descriptions,
                                  std::size_t count) {
  note(Function::cuMemSetAccess);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  if (!covered_by_mappings(kept, address, address + size)) return kInvalidValue;
  for (auto mapping = kept.mappings.find(address); mapping != kept.mappings.end() && mapping->first < address + size;
       ++mapping) {
    const int device = kept.physical[mapping->second.handle].properties.location.id;
    for (std::size_t i = 0; i < count; ++i) {
      if (descriptions[i].location.type == kLocationDevice && descriptions[i].location.id == device) {
        mapping->second.access = descriptions[i].flags;
      }
    }
  }
  return kSuccess;
}

// Peers were granted what the device itself was: only its own access is kept.
PHANTOM_EXPORT int cuMemGetAccess(unsigned long long* flags, const MemoryLocation* location, DeviceAddress address) {
  note(Function::cuMemGetAccess);
  VirtualMemory& kept = virtual_memory();
  const std::lock_guard lock(kept.mutex);
  const auto mapping = mapping_of(kept, address);
  if (flags == nullptr || location == nullptr || mapping == kept.mappings.end()) return kInvalidValue;
  *flags = static_cast<unsigned long long>(mapping->second.access);
  return kSuccess;
}

PHANTOM_EXPORT int cuMemGetAddressRange_v2(DeviceAddress* base, std::size_t* size, DeviceAddress address) {
  note(Function::cuMemGetAddressRange_v2);
  std::uint64_t begin = 0, bytes = 0;
  if (!allocation_of(reinterpret_cast<const void*>(address), &begin, &bytes)) {
    VirtualMemory& kept = virtual_memory();
    const std::lock_guard lock(kept.mutex);
    const auto mapping = mapping_of(kept, address);
    if (mapping == kept.mappings.end()) return kNotFound;
    begin = mapping->first;
    bytes = mapping->second.size;
  }
  if (base != nullptr) *base = begin;
  if (size != nullptr) *size = bytes;
  return kSuccess;
}

// Memory is shared between processes of a run through an anonymous file that says what it is. The exporter's pages stay
// counted as long as it holds them; who imports them takes none. (A real driver would keep them for the importer.)
PHANTOM_EXPORT int cuMemExportToShareableHandle(void* shareable, Handle handle, int type, unsigned long long) {
  note(Function::cuMemExportToShareableHandle);
  if (type != kHandlePosixFileDescriptor) return refuse(Function::cuMemExportToShareableHandle, kNotSupported);
  Exported exported{};
  {
    VirtualMemory& kept = virtual_memory();
    const std::lock_guard lock(kept.mutex);
    const auto found = kept.physical.find(handle);
    if (shareable == nullptr || found == kept.physical.end()) return kInvalidValue;
    exported.size = found->second.size;
    exported.properties = found->second.properties;
  }
  std::copy(std::begin(kExportedMagic), std::end(kExportedMagic), exported.magic);
  exported.card = machine().card(exported.properties.location.id);
  const int file = memfd_create("xmem_phantom_memory", MFD_CLOEXEC);
  if (file < 0) return kNotSupported;
  if (write(file, &exported, sizeof exported) != static_cast<ssize_t>(sizeof exported)) {
    close(file);
    return kNotSupported;
  }
  *static_cast<int*>(shareable) = file;
  return kSuccess;
}

PHANTOM_EXPORT int cuMemImportFromShareableHandle(Handle* handle, void* shareable, int type) {
  note(Function::cuMemImportFromShareableHandle);
  if (type != kHandlePosixFileDescriptor) return refuse(Function::cuMemImportFromShareableHandle, kNotSupported);
  const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  Exported exported{};
  if (pread(file, &exported, sizeof exported, 0) != static_cast<ssize_t>(sizeof exported)) return kInvalidValue;
  if (!std::equal(std::begin(kExportedMagic), std::end(kExportedMagic), exported.magic)) return kInvalidValue;
  for (int device = 0; device < machine().count(); ++device) {
    if (machine().card(device) != exported.card) continue;
    exported.properties.location.id = device;
    VirtualMemory& kept = virtual_memory();
    const std::lock_guard lock(kept.mutex);
    *handle = kept.next_handle++;
    kept.physical[*handle] = Physical{exported.properties, exported.size, true};
    return kSuccess;
  }
  return kInvalidDevice;  // a card that this process does not see
}
