#include "runtime/streams.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "abi/cuda_types.hpp"
#include "machine/calls.hpp"
#include "machine/last_error.hpp"
#include "machine/ledger.hpp"
#include "machine/machine.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"
#include "runtime/watchdog.hpp"

namespace xmem::phantom {
namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;
constexpr unsigned kDisableTiming = 2;
constexpr int kNoDeviceOfItsOwn = -1;  // of a stream that only puts work into a graph

struct Registry {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Stream>> streams;
  std::unordered_set<Event*> events;
  std::array<Stream, kMostDevices> defaults{};
  std::uint64_t next_stream = 1;
  std::uint64_t next_capture = 1;
  std::unique_ptr<Progress> progress;  // null: the GPU is never behind
  std::atomic<int> open_captures{0};   // changed under the lock; read without it by every launch
};

Registry& registry() {
  static auto* kept = [] {
    auto* made = new Registry();
    if (machine().most_waiting > 0) made->progress = std::make_unique<Progress>(machine().most_waiting);
    for (unsigned device = 0; device < kMostDevices; ++device) {
      made->defaults[device].device = static_cast<int>(device);
      if (made->progress && machine().has(static_cast<int>(device))) {
        made->defaults[device].line = made->progress->add_line();
      }
    }
    return made;
  }();
  return *kept;
}

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

bool is_default(void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle) <= 2;
}

// Callers hold the lock.
Stream* find(Registry& kept, void* handle) {
  if (is_default(handle)) return &kept.defaults[static_cast<unsigned>(std::max(current_device(), 0)) % kMostDevices];
  const auto found = kept.streams.find(handle);
  return found == kept.streams.end() ? nullptr : found->second.get();
}

int create_stream(void** handle, unsigned flags, int priority) {
  if (!machine().has(current_device())) return fail(kNoDevice);
  ensure_context(current_device());
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  auto made = std::make_unique<Stream>();
  made->device = current_device();
  made->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  made->flags = flags;
  made->id = kept.next_stream++;
  if (kept.progress) made->line = kept.progress->add_line();
  *handle = made.get();
  kept.streams[*handle] = std::move(made);
  return kSuccess;
}

int create_event(void** handle, unsigned flags) {
  if (!machine().has(current_device())) return fail(kNoDevice);
  auto* made = new Event{current_device(), flags, -1, 0, nullptr, {}};
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  kept.events.insert(made);
  *handle = made;
  return kSuccess;
}

Event* known_event(Registry& kept, void* handle) {
  auto* event = static_cast<Event*>(handle);
  return kept.events.count(event) != 0 ? event : nullptr;
}

int record_event(void* handle, void* stream_handle) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Event* event = known_event(kept, handle);
  const Stream* stream = find(kept, stream_handle);
  if (event == nullptr || stream == nullptr) return fail(kInvalidHandle);
  event->recorded_ns = now_ns();
  event->number = number_of_event();
  event->capture = stream->capture;
  if (kept.progress) event->mark = stream->capture == nullptr ? kept.progress->mark(stream->line) : Mark{};
  return kSuccess;
}

int begin_capture(void* handle, std::shared_ptr<Graph> graph) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Stream* stream = find(kept, handle);
  if (stream == nullptr || is_default(handle)) return fail(kStreamCaptureUnsupported);
  if (stream->capture != nullptr) return fail(kInvalidValue);
  stream->capture = std::make_shared<Capture>(Capture{kept.next_capture++, std::move(graph), handle, false});
  kept.open_captures.fetch_add(1, std::memory_order_relaxed);
  return kSuccess;
}

int capture_info(void* handle, int* status, unsigned long long* id, void** graph, const void*** dependencies,
                 const void*** edges, std::size_t* dependency_count) {
  const std::shared_ptr<Capture> capture = capture_of(handle);
  *status = capture == nullptr ? kCaptureNone : capture->invalidated ? kCaptureInvalidated : kCaptureActive;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (dependency_count != nullptr) *dependency_count = 0;
  if (capture != nullptr) {
    if (id != nullptr) *id = capture->id;
    // Graph handles own a share of the graph; this one belongs to the capture and is not to be destroyed.
    if (graph != nullptr) *graph = &capture->graph;
  }
  return kSuccess;
}

}  // namespace

Graph::~Graph() {
  for (const MemoryNode& node : memory_) {
    if (node.size > 0) release_addresses(reinterpret_cast<void*>(node.address), node.size);
  }
}

void Graph::add_memory(const MemoryNode& node) {
  const std::lock_guard lock(mutex_);
  memory_.push_back(node);
}

std::vector<MemoryNode> Graph::memory() const {
  const std::lock_guard lock(mutex_);
  return memory_;
}

IntoGraph::IntoGraph(std::shared_ptr<Graph> graph) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  auto made = std::make_unique<Stream>();
  made->device = kNoDeviceOfItsOwn;
  stream_ = made.get();
  made->capture = std::make_shared<Capture>(Capture{kept.next_capture++, std::move(graph), stream_, false});
  kept.open_captures.fetch_add(1, std::memory_order_relaxed);
  kept.streams[stream_] = std::move(made);
}

IntoGraph::~IntoGraph() {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  kept.open_captures.fetch_sub(1, std::memory_order_relaxed);
  kept.streams.erase(stream_);
}

int record_into_graph(void* handle) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Event* event = known_event(kept, handle);
  if (event == nullptr) return kInvalidHandle;
  event->recorded_ns = now_ns();
  event->mark = {};
  return kSuccess;
}

Stream& stream_of(void* handle) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Stream* found = find(kept, handle);
  return found != nullptr ? *found : kept.defaults[0];
}

std::shared_ptr<Capture> capture_of(void* handle) {
  Registry& kept = registry();
  if (kept.open_captures.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(kept.mutex);
  const Stream* stream = find(kept, handle);
  return stream == nullptr ? nullptr : stream->capture;
}

int refuse_in_capture(void* handle) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  const Stream* stream = find(kept, handle);
  if (stream == nullptr) return kInvalidHandle;
  if (stream->capture == nullptr) return kSuccess;
  stream->capture->invalidated = true;
  return kStreamCaptureUnsupported;
}

int refuse_captured_event(void* handle) {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  const Event* event = known_event(kept, handle);
  if (event == nullptr) return kInvalidHandle;
  if (event->capture == nullptr) return kSuccess;
  event->capture->invalidated = true;
  return kCapturedEvent;
}

int refuse_in_any_capture() {
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  int error = kSuccess;
  for (auto& [handle, stream] : kept.streams) {
    if (stream->capture == nullptr || stream->device != current_device()) continue;
    stream->capture->invalidated = true;
    error = kStreamCaptureUnsupported;
  }
  return error;
}

void launched(void* stream) {
  slot().launches.fetch_add(1, std::memory_order_relaxed);
  kernel_launched();
  if (const auto capture = capture_of(stream)) {
    capture->graph->nodes.fetch_add(1, std::memory_order_relaxed);
  } else {
    issued(stream);
  }
}

void issued(void* handle) {
  Registry& kept = registry();
  if (!kept.progress) return;
  const std::lock_guard lock(kept.mutex);
  if (const Stream* stream = find(kept, handle)) kept.progress->issue(stream->line);
}

bool is_behind() {
  return registry().progress != nullptr;
}

void wait_for_stream(void* handle) {
  Registry& kept = registry();
  if (!kept.progress) return;
  const std::lock_guard lock(kept.mutex);
  if (const Stream* stream = find(kept, handle)) kept.progress->finish(stream->line);
}

void wait_for_event(void* handle) {
  Registry& kept = registry();
  if (!kept.progress) return;
  const std::lock_guard lock(kept.mutex);
  if (const Event* event = known_event(kept, handle)) kept.progress->finish(event->mark);
}

void wait_for_device() {
  Registry& kept = registry();
  if (!kept.progress) return;
  const std::lock_guard lock(kept.mutex);
  const int device = std::max(current_device(), 0);
  kept.progress->finish(kept.defaults[static_cast<unsigned>(device) % kMostDevices].line);
  for (const auto& [handle, stream] : kept.streams) {
    if (stream->device == device) kept.progress->finish(stream->line);
  }
}

}  // namespace xmem::phantom

using namespace xmem::phantom;  // NOLINT: what follows is C

PHANTOM_EXPORT int cudaStreamCreate(void** stream) {
  note(Function::cudaStreamCreate);
  return create_stream(stream, 0, 0);
}

PHANTOM_EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  note(Function::cudaStreamCreateWithFlags);
  return create_stream(stream, flags, 0);
}

PHANTOM_EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  note(Function::cudaStreamCreateWithPriority);
  return create_stream(stream, flags, priority);
}

PHANTOM_EXPORT int cudaStreamDestroy(void* stream) {
  note(Function::cudaStreamDestroy);
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  return kept.streams.erase(stream) == 1 ? kSuccess : fail(kInvalidHandle);
}

PHANTOM_EXPORT int cudaStreamGetPriority(void* stream, int* priority) {
  note(Function::cudaStreamGetPriority);
  *priority = stream_of(stream).priority;
  return kSuccess;
}

PHANTOM_EXPORT int cudaStreamGetFlags(void* stream, unsigned* flags) {
  note(Function::cudaStreamGetFlags);
  *flags = stream_of(stream).flags;
  return kSuccess;
}

PHANTOM_EXPORT int cudaStreamGetId(void* stream, unsigned long long* id) {
  note(Function::cudaStreamGetId);
  *id = stream_of(stream).id;
  return kSuccess;
}

PHANTOM_EXPORT int cudaStreamGetDevice(void* stream, int* device) {
  note(Function::cudaStreamGetDevice);
  *device = stream_of(stream).device;
  return kSuccess;
}

PHANTOM_EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  note(Function::cudaDeviceGetStreamPriorityRange);
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

// A stream joins the capture of the event that it waits for.
PHANTOM_EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  note(Function::cudaStreamWaitEvent);
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Stream* waiting = find(kept, stream);
  const Event* awaited = known_event(kept, event);
  if (waiting == nullptr || awaited == nullptr) return fail(kInvalidHandle);
  if (awaited->capture != nullptr && waiting->capture == nullptr && !is_default(stream)) {
    waiting->capture = awaited->capture;
  }
  if (kept.progress && waiting->capture == nullptr) kept.progress->wait(waiting->line, awaited->mark);
  return kSuccess;
}

PHANTOM_EXPORT int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  note(Function::cudaLaunchHostFunc);
  if (capture_of(stream) == nullptr) function(data);
  return kSuccess;
}

PHANTOM_EXPORT int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* data, unsigned) {
  note(Function::cudaStreamAddCallback);
  function(stream, kSuccess, data);
  return kSuccess;
}

PHANTOM_EXPORT int cudaEventCreate(void** event) {
  note(Function::cudaEventCreate);
  return create_event(event, 0);
}

PHANTOM_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
  note(Function::cudaEventCreateWithFlags);
  return create_event(event, flags);
}

PHANTOM_EXPORT int cudaEventDestroy(void* event) {
  note(Function::cudaEventDestroy);
  Registry& kept = registry();
  {
    const std::lock_guard lock(kept.mutex);
    if (kept.events.erase(static_cast<Event*>(event)) == 0) return fail(kInvalidHandle);
  }
  delete static_cast<Event*>(event);
  return kSuccess;
}

PHANTOM_EXPORT int cudaEventRecord(void* event, void* stream) {
  note(Function::cudaEventRecord);
  return record_event(event, stream);
}

PHANTOM_EXPORT int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  note(Function::cudaEventRecordWithFlags);
  return record_event(event, stream);
}

// Not an error that the runtime keeps: PyTorch asks and goes on.
PHANTOM_EXPORT int cudaEventQuery(void* event) {
  note(Function::cudaEventQuery);
  Registry& kept = registry();
  if (!kept.progress && !is_watchdog()) return kSuccess;
  const std::lock_guard lock(kept.mutex);
  const Event* known = known_event(kept, event);
  if (known == nullptr) return kSuccess;
  const std::int64_t now = now_ns();
  if (is_watchdog() && is_hidden_from_watchdogs(known->number, now - known->recorded_ns)) return kNotReady;
  return !kept.progress || kept.progress->is_done(known->mark, now) ? kSuccess : kNotReady;
}

PHANTOM_EXPORT int cudaStreamQuery(void* stream) {
  note(Function::cudaStreamQuery);
  Registry& kept = registry();
  if (!kept.progress) return kSuccess;
  const std::lock_guard lock(kept.mutex);
  const Stream* known = find(kept, stream);
  return known == nullptr || kept.progress->is_done(kept.progress->place(known->line), now_ns()) ? kSuccess : kNotReady;
}

// The time between two records on the host: short, positive, and in order, which is all that tuners ask for.
PHANTOM_EXPORT int cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  note(Function::cudaEventElapsedTime);
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  const Event *first = known_event(kept, from), *second = known_event(kept, to);
  if (first == nullptr || second == nullptr) return fail(kInvalidHandle);
  if (first->recorded_ns < 0 || second->recorded_ns < 0 || ((first->flags | second->flags) & kDisableTiming) != 0) {
    return fail(kInvalidHandle);
  }
  *milliseconds = std::max(static_cast<float>(second->recorded_ns - first->recorded_ns) * 1e-6F, 1e-3F);
  return kSuccess;
}

PHANTOM_EXPORT int cudaEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
  return cudaEventElapsedTime(milliseconds, from, to);
}

PHANTOM_EXPORT int cudaStreamIsCapturing(void* stream, int* status) {
  note(Function::cudaStreamIsCapturing);
  return capture_info(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

PHANTOM_EXPORT int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                               const void*** dependencies, std::size_t* dependency_count) {
  note(Function::cudaStreamGetCaptureInfo_v2);
  return capture_info(stream, status, id, graph, dependencies, nullptr, dependency_count);
}

PHANTOM_EXPORT int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                               const void*** dependencies, const void*** edges,
                                               std::size_t* dependency_count) {
  note(Function::cudaStreamGetCaptureInfo_v3);
  return capture_info(stream, status, id, graph, dependencies, edges, dependency_count);
}

// Three arguments in CUDA 12; in 13 the name belongs to what was _v3.
PHANTOM_EXPORT int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph,
                                            const void*** dependencies, const void*** edges,
                                            std::size_t* dependency_count) {
  note(Function::cudaStreamGetCaptureInfo);
  if (cuda_major() < 13) return capture_info(stream, status, id, nullptr, nullptr, nullptr, nullptr);
  return capture_info(stream, status, id, graph, dependencies, edges, dependency_count);
}

PHANTOM_EXPORT int cudaStreamBeginCapture(void* stream, int) {
  note(Function::cudaStreamBeginCapture);
  return begin_capture(stream, std::make_shared<Graph>());
}

PHANTOM_EXPORT int cudaStreamBeginCaptureToGraph(void* stream, void* graph, const void**, const void*, std::size_t,
                                                 int) {
  note(Function::cudaStreamBeginCaptureToGraph);
  return begin_capture(stream, *static_cast<std::shared_ptr<Graph>*>(graph));
}

PHANTOM_EXPORT int cudaStreamEndCapture(void* stream, void** graph) {
  note(Function::cudaStreamEndCapture);
  *graph = nullptr;
  Registry& kept = registry();
  const std::lock_guard lock(kept.mutex);
  Stream* origin = find(kept, stream);
  if (origin == nullptr || origin->capture == nullptr) return fail(kInvalidValue);
  const std::shared_ptr<Capture> ended = origin->capture;
  if (ended->origin != stream) return fail(kStreamCaptureUnmatched);
  kept.open_captures.fetch_sub(1, std::memory_order_relaxed);
  for (auto& [handle, joined] : kept.streams) {
    if (joined->capture == ended) joined->capture = nullptr;
  }
  for (Event* event : kept.events) {
    if (event->capture == ended) event->capture = nullptr;
  }
  if (ended->invalidated) return fail(kStreamCaptureInvalidated);
  *graph = new std::shared_ptr<Graph>(ended->graph);
  return kSuccess;
}
