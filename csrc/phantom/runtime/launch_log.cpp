#include "runtime/launch_log.hpp"

#include <cxxabi.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "machine/calls.hpp"
#include "runtime/kernels.hpp"
#include "runtime/streams.hpp"

namespace xmem::phantom {

std::atomic<bool> launch_log::open{false};

namespace {

// Launches beyond these are counted only: 24 bytes each.
constexpr std::size_t kMostLaunches = std::size_t{8} << 20;

// `xmem_child/records/launches.py` reads the same layout.
struct Launched {
  std::int64_t time_ns;  // of the Unix clock
  std::uint32_t what;    // a row of the table
  std::int32_t thread;
  std::uint64_t stream;
};
static_assert(sizeof(Launched) == 24);

// Distinct launches: a row of the table each.
struct What {
  std::string name;
  LaunchShape shape{};
  KernelCode code;
  bool known = false;
  bool is_call = false;
  std::string problem;
};

struct KernelKey {
  const void* handle;
  LaunchShape shape;
};
bool operator==(const KernelKey& one, const KernelKey& other) {
  return one.handle == other.handle && std::memcmp(&one.shape, &other.shape, sizeof one.shape) == 0;
}
static_assert(sizeof(LaunchShape) == 32, "no padding: it is compared and hashed as bytes");

struct HashOfKey {
  std::size_t operator()(const KernelKey& key) const {
    const std::string_view bytes(reinterpret_cast<const char*>(&key.shape), sizeof key.shape);
    return std::hash<const void*>{}(key.handle) * 31 + std::hash<std::string_view>{}(bytes);
  }
};

struct Log {
  std::mutex mutex;
  std::vector<What> table;
  std::unordered_map<KernelKey, std::uint32_t, HashOfKey> kernels;
  std::unordered_map<std::string, std::uint32_t> calls;  // by name and problem
  std::deque<Launched> launched;
  std::uint64_t dropped = 0;
};

Log& launch_book() {
  static auto* kept = new Log();  // never destroyed: kernels are launched from exit handlers
  return *kept;
}

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int32_t this_thread() {
  thread_local const auto number = static_cast<std::int32_t>(syscall(SYS_gettid));
  return number;
}

// The lock is held.
void add(Log& kept, std::uint32_t what, void* stream, std::int64_t time_ns) {
  if (kept.launched.size() >= kMostLaunches)
    ++kept.dropped;
  else
    kept.launched.push_back({time_ns, what, this_thread(), reinterpret_cast<std::uint64_t>(stream)});
}

void add_or_capture(Log& kept, std::uint32_t what, void* stream, std::int64_t time_ns) {
  if (const auto capture = capture_of(stream))
    capture->graph->work.push_back(what);
  else
    add(kept, what, stream, time_ns);
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string made = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return made;
}

What describe(const void* handle, const LaunchShape& shape, int capability) {
  Kernel kernel = kernel_of(handle, capability);
  What what;
  what.name = demangled(kernel.name);
  what.shape = shape;
  what.code = kernel.code;
  what.known = kernel.known;
  if (shape.cluster_blocks > 0) what.code.cluster_blocks = static_cast<int>(shape.cluster_blocks);
  return what;
}

void append_quoted(std::string& json, const std::string& text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  json += '"';
}

void append_number(std::string& json, std::int64_t number) {
  json += ',';
  json += std::to_string(number);
}

void append(std::string& json, const What& what) {
  json += what.is_call ? "[1," : "[0,";
  append_quoted(json, what.name);
  if (what.is_call) {
    json += ',';
    json += what.problem.empty() ? "{}" : what.problem;
  } else {
    const LaunchShape& shape = what.shape;
    for (const unsigned count : {shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x, shape.block.y, shape.block.z,
                                 shape.dynamic_shared_bytes}) {
      append_number(json, count);
    }
    append_number(json, what.known ? what.code.static_shared_bytes : -1);
    append_number(json, what.known ? what.code.registers : -1);
    append_number(json, what.known ? what.code.local_bytes : -1);
    append_number(json, what.code.cluster_blocks);
  }
  json += ']';
}

}  // namespace

void log_kernel(const void* handle, const LaunchShape& shape, void* stream, int capability) {
  const std::int64_t time_ns = now_ns();
  Log& kept = launch_book();
  const KernelKey key{handle, shape};
  {
    const std::lock_guard lock(kept.mutex);
    const auto found = kept.kernels.find(key);
    if (found != kept.kernels.end()) return add_or_capture(kept, found->second, stream, time_ns);
  }
  What made = describe(handle, shape, capability);  // may read code, which takes a while
  const std::lock_guard lock(kept.mutex);
  const auto [place, is_new] = kept.kernels.emplace(key, static_cast<std::uint32_t>(kept.table.size()));
  if (is_new) kept.table.push_back(std::move(made));
  add_or_capture(kept, place->second, stream, time_ns);
}

void called(Function function, void* stream, const std::string& problem) {
  launched(stream);
  if (!logs_launches()) return;
  const std::int64_t time_ns = now_ns();
  const char* name = name_of(function);
  Log& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  const auto [place, is_new] =
      kept.calls.emplace(std::string(name) + problem, static_cast<std::uint32_t>(kept.table.size()));
  if (is_new) {
    What made;
    made.name = name;
    made.is_call = true;
    made.problem = problem;
    kept.table.push_back(std::move(made));
  }
  add_or_capture(kept, place->second, stream, time_ns);
}

void log_graph(const std::vector<std::uint32_t>& work, void* stream) {
  const std::int64_t time_ns = now_ns();
  Log& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  for (const std::uint32_t what : work) add(kept, what, stream, time_ns);
}

void forget_in_log(const void* handle) {
  if (!logs_launches()) return;
  Log& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  for (auto row = kept.kernels.begin(); row != kept.kernels.end();) {
    row = row->first.handle == handle ? kept.kernels.erase(row) : std::next(row);
  }
}

}  // namespace xmem::phantom

using xmem::phantom::launch_book;

// For the Python side of a capture (capture/child/xmem_child/records/launches.py): begins and ends the log.
PHANTOM_EXPORT void xmem_phantom_log_launches(int open) {
  xmem::phantom::launch_log::open.store(open != 0);
}

// The table of distinct launches as JSON, written as far as there is room; returns how much there is. A row is
// [0, name, grid x, y, z, block x, y, z, dynamic shared, static shared, registers, local bytes, cluster blocks] or, of
// a library's function, [1, name, {what it computes}].
PHANTOM_EXPORT std::size_t xmem_phantom_launch_table(char* text, std::size_t room) {
  auto& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  std::string json = "[";
  for (const auto& what : kept.table) {
    if (json.size() > 1) json += ',';
    append(json, what);
  }
  json += ']';
  std::memcpy(text, json.data(), std::min(json.size(), room));
  return json.size();
}

// The launches in their order, of 24 bytes each, as many as there is room for; returns how many there are.
PHANTOM_EXPORT std::size_t xmem_phantom_launches(void* rows, std::size_t room) {
  auto& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  auto* to = static_cast<char*>(rows);
  for (std::size_t i = 0; i < std::min(room, kept.launched.size()); ++i, to += sizeof kept.launched[i]) {
    std::memcpy(to, &kept.launched[i], sizeof kept.launched[i]);
  }
  return kept.launched.size();
}

// How many launches there was no room for.
PHANTOM_EXPORT std::uint64_t xmem_phantom_launches_dropped() {
  auto& kept = launch_book();
  const std::lock_guard lock(kept.mutex);
  return kept.dropped;
}
