#include "loading/redirection.hpp"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "surface.hpp"

namespace xmem::phantom {
namespace {

using Address = ElfW(Addr);
using Symbol = ElfW(Sym);

// A library in memory, and its table of dynamic symbols.
struct Library {
  Address base = 0;
  Symbol* symbols = nullptr;
  std::size_t count = 0;
  const char* names = nullptr;
  int protection = PROT_READ;  // of the memory that holds the table
};

// The number of symbols, which only the table of hashes tells: the last chain ends with the last symbol.
std::size_t count_symbols(const std::uint32_t* hashes) {
  const std::uint32_t buckets = hashes[0];
  const std::uint32_t first = hashes[1];
  const std::uint32_t words_of_filter = hashes[2];
  const std::uint32_t* bucket = hashes + 4 + words_of_filter * (sizeof(Address) / sizeof(std::uint32_t));
  const std::uint32_t* chain = bucket + buckets;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

const ElfW(Phdr) * segment_at(const dl_phdr_info& info, Address address) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = info.dlpi_phdr[i];
    const Address offset = address - info.dlpi_addr - header.p_vaddr;
    if (header.p_type == PT_LOAD && offset < header.p_memsz) return &header;
  }
  return nullptr;
}

Library described(const dl_phdr_info& info) {
  Library library;
  library.base = info.dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = info.dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(library.base + header.p_vaddr);
  }
  // The loader has turned the offsets into addresses, but for the few libraries that it maps without writing to them.
  const auto address = [&](const ElfW(Dyn) & entry) {
    return entry.d_un.d_ptr < library.base ? library.base + entry.d_un.d_ptr : entry.d_un.d_ptr;
  };
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    if (dynamic->d_tag == DT_SYMTAB) library.symbols = reinterpret_cast<Symbol*>(address(*dynamic));
    if (dynamic->d_tag == DT_STRTAB) library.names = reinterpret_cast<const char*>(address(*dynamic));
    if (dynamic->d_tag == DT_GNU_HASH) {
      library.count = count_symbols(reinterpret_cast<const std::uint32_t*>(address(*dynamic)));
    }
  }
  if (const ElfW(Phdr)* segment = segment_at(info, reinterpret_cast<Address>(library.symbols))) {
    if ((segment->p_flags & PF_X) != 0) library.protection |= PROT_EXEC;
    if ((segment->p_flags & PF_W) != 0) library.protection |= PROT_WRITE;
  }
  if (library.symbols == nullptr || library.names == nullptr) library.count = 0;
  return library;
}

// libcudnn.so.9, or libcudnn-1a2b3c.so.9 in a wheel that brings its own, but not the parts that it opens by name itself
// (libcudnn_ops.so.9), whose functions it needs.
bool is_replaced(const std::string& file) {
  const std::string_view name = std::string_view(file).substr(file.rfind('/') + 1);
  for (const char* library : kLibraries) {
    const std::string beginning = std::string("lib") + library;
    const std::size_t size = beginning.size();
    if (name.size() > size && name.substr(0, size) == beginning && (name[size] == '.' || name[size] == '-'))
      return true;
  }
  return false;
}

template <typename Use>
void each_function(const Library& library, Use use) {
  for (std::size_t i = 0; i < library.count; ++i) {
    Symbol& symbol = library.symbols[i];
    if (symbol.st_shndx == SHN_UNDEF || (symbol.st_info & 0xf) != STT_FUNC) continue;
    use(symbol, library.names + symbol.st_name);
  }
}

struct Redirections {
  std::mutex mutex;
  std::unordered_map<std::string_view, Address> own;  // the phantom's functions
  std::map<std::pair<Address, std::string_view>, Address> before;
  Address own_base = 0;
  // Whether the library that is looked at comes after the phantom. Whatever comes before takes nothing from it: the
  // process that plans for cuDNN opens the phantom after cuDNN, as a driver alone.
  bool is_past_own = false;
  std::vector<std::pair<Address, std::string>> seen;
  unsigned long long loads = 0;  // of this process until the last call
};

Redirections& redirections() {
  static auto* made = new Redirections;  // never destroyed: threads outlive exit handlers
  return *made;
}

void redirect(const Library& library, Redirections& state) {
  const auto page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  const Address table = reinterpret_cast<Address>(library.symbols);
  const Address start = table / page * page;
  auto* pages = reinterpret_cast<void*>(start);
  const std::size_t bytes = table + library.count * sizeof(Symbol) - start;
  if (mprotect(pages, bytes, library.protection | PROT_WRITE) != 0) return;
  each_function(library, [&](Symbol& symbol, const char* name) {
    const auto found = state.own.find(name);
    if (found == state.own.end()) return;
    state.before.emplace(std::pair(library.base, std::string_view(name)), library.base + symbol.st_value);
    symbol.st_value = found->second - library.base;
  });
  mprotect(pages, bytes, library.protection);
}

// No function of the loader that takes its lock may be called here: a thread that runs the constructors of a library
// has that lock, and may wait for this one.
int find_own(dl_phdr_info* info, std::size_t, void* state_address) {
  if (segment_at(*info, reinterpret_cast<Address>(&redirect_loaded_libraries)) == nullptr) return 0;
  auto& state = *static_cast<Redirections*>(state_address);
  const Library phantom = described(*info);
  state.own_base = phantom.base;
  each_function(phantom, [&](const Symbol& symbol, const char* name) {
    state.own.emplace(name, phantom.base + symbol.st_value);
  });
  return 1;
}

int look_at(dl_phdr_info* info, std::size_t, void* state_address) {
  auto& state = *static_cast<Redirections*>(state_address);
  const std::string file = info->dlpi_name;
  if (info->dlpi_addr == state.own_base) state.is_past_own = true;
  if (!state.is_past_own || !is_replaced(file)) return 0;
  for (const auto& [base, name] : state.seen) {
    if (base == info->dlpi_addr && name == file) return 0;
  }
  state.seen.emplace_back(info->dlpi_addr, file);
  redirect(described(*info), state);
  return 0;
}

int count_loads(dl_phdr_info* info, std::size_t, void* count) {
  *static_cast<unsigned long long*>(count) = info->dlpi_adds;
  return 1;
}

}  // namespace

void redirect_loaded_libraries() {
  Redirections& state = redirections();
  const std::lock_guard lock(state.mutex);
  unsigned long long loads = 0;
  dl_iterate_phdr(count_loads, &loads);
  if (loads == state.loads) return;
  state.loads = loads;
  if (state.own.empty()) dl_iterate_phdr(find_own, &state);
  state.is_past_own = false;
  dl_iterate_phdr(look_at, &state);
}

void* redirected_from(std::uintptr_t base, const char* name) {
  Redirections& state = redirections();
  const std::lock_guard lock(state.mutex);
  const auto found = state.before.find({base, name});
  return found == state.before.end() ? nullptr : reinterpret_cast<void*>(found->second);
}

}  // namespace xmem::phantom
