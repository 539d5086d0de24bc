// The described machine: its GPUs, and where this process stands in it.
//
// XMEM_PHANTOM names a folder with the file `machine`, lines of a key and a value; `xmem.phantom.machine` writes it:
//   driver_version 13000
//   cudnn_library PATH          a libcudnn.so.9 of 9.8 or newer, for environments whose own is older; may be absent
//   most_waiting 1024           work of a stream that may wait for a GPU that is behind; left out, it never is
//   device                      begins the next GPU
//   name NVIDIA GeForce RTX 3060
//   uuid 4f1c...                32 hexadecimal digits
//   total_memory_bytes 12622168064
//   limit_bytes 12622168064     what it gives out before it is out of memory; all of it when left out
//   nvml_total_memory_bytes 12884901888
//   context_bytes 153092096
//   attribute 16 28             a cudaDeviceAttr and its value
//   cudnn {"cudaDeviceId":0...} cuDNN's own description of the device, as JSON
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "abi/device_attribute.hpp"

namespace xmem::phantom {

struct Device {
  std::string name;
  std::array<unsigned char, 16> uuid{};
  std::int64_t total_memory_bytes = 0;
  std::int64_t limit_bytes = 0;
  std::int64_t nvml_total_memory_bytes = 0;  // what nvidia-smi shows: with what the driver keeps for itself
  std::int64_t context_bytes = 0;
  std::array<int, kLastDeviceAttribute + 1> attributes{};
  std::string cudnn;

  int attribute(DeviceAttribute which) const { return attributes[static_cast<std::size_t>(which)]; }
  int capability() const { return 10 * attribute(kComputeCapabilityMajor) + attribute(kComputeCapabilityMinor); }
};

struct Machine {
  int driver_version = 0;
  std::string cudnn_library;
  std::uint64_t most_waiting = 0;
  std::vector<Device> devices;  // those that CUDA_VISIBLE_DEVICES lets this process see
  std::vector<int> physical;    // the card behind each of them
  std::vector<Device> cards;    // all GPUs of the machine, as NVML sees them

  int count() const { return static_cast<int>(devices.size()); }
  bool has(int device) const { return device >= 0 && device < count(); }
  const Device& device(int number) const { return devices[static_cast<unsigned>(number)]; }
  unsigned card(int number) const { return static_cast<unsigned>(physical[static_cast<unsigned>(number)]); }
};

// Read once; without a machine file there is no GPU.
const Machine& machine();

// Of the CUDA runtime in this process, as cudaRuntimeGetVersion gives it (12040), and its major version: two structures
// and some functions differ between 12 and 13.
int runtime_version();
int cuda_major();

// cudaSetDevice and cudaGetDevice of this thread.
int current_device();
void set_current_device(int device);

// Called by whatever creates a context on the real card: its memory is taken from now on.
void ensure_context(int device);
bool has_context(int device);

}  // namespace xmem::phantom
