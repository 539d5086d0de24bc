#include "runtime/registered_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "code/code_object.hpp"
#include "loading/loaded.hpp"

namespace xmem::phantom {

// What an image says of its kernels, by a hash of their names: a library's names take more memory than all else.
using CodeByName = std::unordered_map<std::size_t, KernelCode>;

struct RegisteredBinary {
  const void* wrapper;                 // first: the handle's content, as the runtime has it; null: unloaded
  std::map<int, CodeVersions> chosen;  // by architecture of the device
  bool of_torch;
  std::map<int, CodeByName> read;  // likewise
};

namespace {

struct Pair {
  const void* host_function;
  RegisteredBinary* binary;
  const char* name;  // in the library's memory
};

struct Registered {
  std::mutex mutex;
  std::vector<Pair> pairs;  // the first `sorted` by host function, each once; the others as they came
  std::size_t sorted = 0;
  std::unordered_map<const void*, int> allowed_shared_bytes;
};

Registered& registered() {
  static auto* kept = new Registered();  // never destroyed: libraries are unloaded from exit handlers
  return *kept;
}

bool by_function(const Pair& one, const Pair& other) {
  return one.host_function < other.host_function;
}

// A library that was loaded where another had been replaces what that one registered: the last pair counts.
void sort_new(Registered& kept) {
  if (kept.sorted == kept.pairs.size()) return;
  std::stable_sort(kept.pairs.begin(), kept.pairs.end(), by_function);
  std::vector<Pair> last;
  last.reserve(kept.pairs.size());
  for (const Pair& pair : kept.pairs) {
    if (!last.empty() && last.back().host_function == pair.host_function)
      last.back() = pair;
    else
      last.push_back(pair);
  }
  kept.pairs = std::move(last);
  kept.sorted = kept.pairs.size();
}

// The pair of a host function; null of other addresses. The lock is held.
const Pair* find(Registered& kept, const void* host_function) {
  sort_new(kept);
  const auto found =
      std::lower_bound(kept.pairs.begin(), kept.pairs.end(), Pair{host_function, nullptr, nullptr}, by_function);
  return found == kept.pairs.end() || found->host_function != host_function ? nullptr : &*found;
}

CodeVersions choose(RegisteredBinary& binary, int capability) {
  const auto known = binary.chosen.find(capability);
  if (known != binary.chosen.end()) return known->second;
  const FatBinary read = read_fat_binary(binary.wrapper);
  const CodeVersions made = read.known ? choose_image(read.images, capability) : CodeVersions{capability, capability};
  binary.chosen[capability] = made;
  return made;
}

// The code of an image is unpacked, read and let go.
const CodeByName& read_code(RegisteredBinary& binary, int capability) {
  const auto known = binary.read.find(capability);
  if (known != binary.read.end()) return known->second;
  CodeByName& found = binary.read[capability];
  if (binary.wrapper == nullptr) return found;
  for (const ListedKernel& kernel : read_code_object(binary.wrapper, SIZE_MAX, capability).kernels) {
    found.emplace(std::hash<std::string_view>{}(kernel.name), kernel.code);
  }
  return found;
}

}  // namespace

RegisteredBinary* register_binary(const void* wrapper) {
  return new RegisteredBinary{wrapper, {}, lies_in_torch(wrapper), {}};
}

void register_kernel(RegisteredBinary* binary, const void* host_function, const char* name) {
  if (binary == nullptr) return;
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  kept.pairs.push_back({host_function, binary, name});
}

// The record stays, since pairs refer to it.
void unregister_binary(RegisteredBinary* binary) {
  if (binary == nullptr) return;
  const std::lock_guard lock(registered().mutex);
  binary->wrapper = nullptr;
}

CodeVersions versions_of_registered(const void* host_function, int capability) {
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  const Pair* found = find(kept, host_function);
  return found != nullptr ? choose(*found->binary, capability) : CodeVersions{capability, capability};
}

RegisteredKernel registered_kernel(const void* host_function, int capability) {
  RegisteredKernel kernel;
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  const Pair* found = find(kept, host_function);
  if (found == nullptr || found->binary->wrapper == nullptr || found->name == nullptr) return kernel;
  kernel.name = found->name;
  const CodeByName& code = read_code(*found->binary, capability);
  if (const auto own = code.find(std::hash<std::string_view>{}(kernel.name)); own != code.end()) {
    kernel.known = true;
    kernel.code = own->second;
  }
  const auto allowed = kept.allowed_shared_bytes.find(host_function);
  if (allowed != kept.allowed_shared_bytes.end()) kernel.most_dynamic_shared_bytes = allowed->second;
  return kernel;
}

const char* name_of_registered(const void* host_function) {
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  const Pair* found = find(kept, host_function);
  return found != nullptr && found->binary->wrapper != nullptr ? found->name : nullptr;
}

void allow_registered_dynamic_shared(const void* host_function, int bytes) {
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  if (find(kept, host_function) != nullptr) kept.allowed_shared_bytes[host_function] = bytes;
}

bool is_of_torch(const void* host_function) {
  Registered& kept = registered();
  const std::lock_guard lock(kept.mutex);
  const Pair* found = find(kept, host_function);
  return found != nullptr && found->binary->of_torch;
}

}  // namespace xmem::phantom
