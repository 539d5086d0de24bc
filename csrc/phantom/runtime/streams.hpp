// Streams, events and captures. Work is over as soon as it is issued, in the order of the program, so a stream is a
// name; only captures have state: while one is open, work on its streams goes into a graph and does not run. On a
// machine that is described as behind, work is over for those who ask for it when `Progress` has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/graph_memory.hpp"
#include "runtime/progress.hpp"

namespace xmem::phantom {

// A recorded graph: how much was captured, for nothing of it is ever computed.
struct Graph {
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();  // gives back the addresses of its allocations

  void add_memory(const MemoryNode& node);
  std::vector<MemoryNode> memory() const;

  std::atomic<std::uint64_t> nodes{0};
  std::vector<std::uint32_t> work;  // of the launch log, under its lock

 private:
  mutable std::mutex mutex_;
  std::vector<MemoryNode> memory_;
};

struct Capture {
  std::uint64_t id;
  std::shared_ptr<Graph> graph;
  void* origin;  // the stream that must end it
  bool invalidated = false;
};

struct Stream {
  int device;
  int priority;
  unsigned flags;
  std::uint64_t id;
  std::shared_ptr<Capture> capture;  // null outside of captures
  Line line = 0;                     // where the machine is behind
};

struct Event {
  int device;
  unsigned flags;
  std::int64_t recorded_ns = -1;
  std::uint64_t number = 0;          // counts records of all events; 0: never recorded
  std::shared_ptr<Capture> capture;  // of the stream it was last recorded on
  Mark mark;                         // where the machine is behind
};

// The stream of a handle; null, 1 and 2 are the default streams of the current device.
Stream& stream_of(void* handle);

// Work was issued on a stream: counted, or put into the graph being captured.
void launched(void* stream);

// Work was issued on a stream that no graph takes and nothing counts.
void issued(void* stream);

// Whether the machine is behind, so that the host may have to wait for it.
bool is_behind();

// The host waits for a stream, an event, or all streams of the current device.
void wait_for_stream(void* stream);
void wait_for_event(void* event);
void wait_for_device();

// A stream that puts work into a graph while it lives, as a capture that only its owner sees.
class IntoGraph {
 public:
  explicit IntoGraph(std::shared_ptr<Graph> graph);
  IntoGraph(const IntoGraph&) = delete;
  IntoGraph& operator=(const IntoGraph&) = delete;
  ~IntoGraph();
  void* stream() const { return stream_; }

 private:
  void* stream_;
};

// An event of a graph, which is recorded with each of its launches: as if it had been when it was put there.
int record_into_graph(void* event);

// Whether a capture is open on the stream.
std::shared_ptr<Capture> capture_of(void* stream);

// What waits for the device cannot be captured: an error that also spoils the capture, kSuccess where none is open. For
// a stream, for an event recorded in a capture, and for all streams of the current device.
int refuse_in_capture(void* stream);
int refuse_captured_event(void* event);
int refuse_in_any_capture();

}  // namespace xmem::phantom
