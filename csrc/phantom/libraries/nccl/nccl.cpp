// NCCL: communicators are bookkeeping, collectives move nothing.
//
// Every rank is a process (or a thread) of its own and none waits for another. What a rank reads from a receive buffer
// is therefore its own contribution, for which it is assumed that all ranks contribute alike: a broadcast keeps what is
// in the buffer, a sum is what one rank put in, a gather finds it once for every rank. This holds for the small facts
// that PyTorch compares across ranks (parameter shapes, the order of DDP's buckets); see memory/contents.hpp.
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libraries/nccl/communicator.hpp"
#include "loading/loaded.hpp"
#include "machine/calls.hpp"
#include "machine/machine.hpp"
#include "memory/contents.hpp"
#include "memory/device_memory.hpp"
#include "runtime/streams.hpp"

using namespace xmem::phantom;  // NOLINT: what follows is C

namespace xmem::phantom {
namespace {

// ncclResult_t
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5
};

constexpr int kNoColor = -1;
constexpr int kBuiltInReductions = 5;                                                     // ncclNumOps
constexpr std::array<std::size_t, 12> kTypeBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // by ncclDataType_t

// Host code of NCCL's device API takes and returns these by value.
struct Team {
  int ranks, rank, stride;
};

Communicator& communicator_of(void* handle) {
  return *static_cast<Communicator*>(handle);
}

UniqueId random_id() {
  UniqueId id{};
  std::size_t filled = 0;
  while (filled < sizeof id.bytes) {
    const ssize_t got = getrandom(id.bytes + filled, sizeof id.bytes - filled, 0);
    if (got <= 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return id;
}

constexpr int kConnectsLater = 22203;  // the first version that does

// The NCCL whose place the phantom takes, such as 22705 for 2.27.5; the oldest known, if none is loaded.
int version_of_loaded_nccl() {
  int version = 22105;
  if (auto* get = loaded<int(int*)>("libnccl.so", "ncclGetVersion")) get(&version);
  return version;
}

// Versions before connect everything for collectives at once.
bool connect_first(Communicator& made) {
  if (!made.connect(NcclPart::table)) return false;
  if (version_of_loaded_nccl() >= kConnectsLater) return true;
  return made.connect(NcclPart::ring) && made.connect(NcclPart::tree) && made.connect(NcclPart::multicast);
}

int create(void** handle, const UniqueId& id, int rank, NcclRanks ranks, int device) {
  *handle = nullptr;
  if (rank < 0 || rank >= ranks.all || !machine().has(device)) return kNcclInvalidArgument;
  ensure_context(device);
  auto made = std::make_unique<Communicator>(id, rank, ranks, device);
  if (!connect_first(*made)) {
    made->disconnect();
    return kNcclUnhandledCudaError;
  }
  *handle = made.release();
  return kNcclSuccess;
}

// All ranks are on this server, unless xmem_child has said otherwise.
int create(void** handle, const UniqueId& id, int rank, int size, int device) {
  return create(handle, id, rank, NcclRanks{size, std::clamp(ranks_here_of(id).value_or(size), 1, std::max(size, 1))},
                device);
}

int destroy(void* handle) {
  if (handle == nullptr) return kNcclSuccess;
  communicator_of(handle).disconnect();
  delete &communicator_of(handle);
  return kNcclSuccess;
}

// What a collective needs is there from its first call on, also of one that is captured into a graph.
int connect(void* communicator, NcclPart part) {
  return communicator_of(communicator).connect(part) ? kNcclSuccess : kNcclUnhandledCudaError;
}

int connect_for_all_reduce(void* communicator) {
  for (const NcclPart part : {NcclPart::ring, NcclPart::tree, NcclPart::multicast}) {
    if (const int error = connect(communicator, part)) return error;
  }
  return kNcclSuccess;
}

int connect_peer(void* communicator, int peer) {
  return communicator_of(communicator).connect_peer(peer) ? kNcclSuccess : kNcclUnhandledCudaError;
}

int connect_all_peers(void* communicator) {
  for (int peer = 0; peer < communicator_of(communicator).size; ++peer) {
    if (const int error = connect_peer(communicator, peer)) return error;
  }
  return kNcclSuccess;
}

// Of a collective with a root that sends to each of its peers, or receives from them.
int connect_root(void* communicator, int root) {
  return communicator_of(communicator).rank == root ? connect_all_peers(communicator)
                                                    : connect_peer(communicator, root);
}

// What one rank said when it split a communicator.
struct Choice {
  std::int32_t made;
  std::int32_t color;
  std::int32_t key;
};
using Choices = std::vector<Choice>;

bool read_choices(int file, Choices& choices) {
  const std::size_t bytes = sizeof(Choice) * choices.size();
  return pread(file, choices.data(), bytes, 0) == static_cast<ssize_t>(bytes) &&
         std::all_of(choices.begin(), choices.end(), [](const Choice& choice) { return choice.made != 0; });
}

// The ranks of a split learn each other's choices from a file beside the machine's, as those of NCCL do from their
// bootstrap network, and wait for each other as they do there. False when some rank never came.
bool exchange_choices(const Communicator& parent, unsigned split, const Choice& own, Choices& choices) {
  constexpr int kPatienceMs = 20000;
  const char* folder = std::getenv("XMEM_PHANTOM");
  if (folder == nullptr) return false;
  char name[64];
  std::uint64_t digits = 0;
  std::memcpy(&digits, parent.id.bytes, sizeof digits);
  std::snprintf(name, sizeof name, "/nccl-%016llx-%u", static_cast<unsigned long long>(digits), split);
  const int file = open((std::string(folder) + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return false;
  choices.resize(static_cast<unsigned>(parent.size));
  const auto place = static_cast<off_t>(sizeof own * static_cast<unsigned>(parent.rank));
  bool complete = false;
  if (pwrite(file, &own, sizeof own, place) == sizeof own) {
    for (int waited = 0; !(complete = read_choices(file, choices)) && waited < kPatienceMs; ++waited) usleep(1000);
  }
  close(file);
  return complete;
}

// The number of a new communicator that all of its ranks compute alike from the parent's.
UniqueId child_id(const UniqueId& parent, std::uint64_t number) {
  UniqueId id = parent;
  std::uint64_t digits = 0;
  std::memcpy(&digits, id.bytes, sizeof digits);
  digits = (digits ^ number) * 0x9e3779b97f4a7c15;
  std::memcpy(id.bytes, &digits, sizeof digits);
  return id;
}

// Work on a stream: true when it goes into a graph instead of being done.
bool captured(void* stream) {
  const auto capture = capture_of(stream);
  if (capture == nullptr) return false;
  capture->graph->nodes.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::size_t bytes_of(std::size_t count, int type) {
  return type >= 0 && static_cast<unsigned>(type) < kTypeBytes.size() ? count * kTypeBytes[static_cast<unsigned>(type)]
                                                                      : 0;
}

const char* part(const void* buffer, std::size_t bytes, int rank) {
  return static_cast<const char*>(buffer) + bytes * static_cast<unsigned>(rank);
}

char* part(void* buffer, std::size_t bytes, int rank) {
  return static_cast<char*>(buffer) + bytes * static_cast<unsigned>(rank);
}

void keep(void* received, const void* sent, std::size_t bytes) {
  if (received != nullptr && received != sent) device_copied(received, sent, bytes);
}

void gather_own(void* received, const void* sent, std::size_t bytes, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) keep(part(received, bytes, rank), sent, bytes);
}

// Sends and receives of a group. One that receives from a peer as many bytes as it sends there in the same group is
// part of an exchange, and finds what it sent; other receive buffers are left as they are.
struct Transfer {
  void* communicator;
  int peer;
  const void* sent;
  void* received;
  std::size_t bytes;
};
thread_local int group_depth = 0;
thread_local std::vector<Transfer> group_transfers;

int transfer(const Transfer& one, void* stream) {
  if (captured(stream)) return kNcclSuccess;
  if (group_depth > 0) group_transfers.push_back(one);
  return kNcclSuccess;
}

void finish_group() {
  for (Transfer& into : group_transfers) {
    if (into.received == nullptr) continue;
    const auto from = std::find_if(group_transfers.begin(), group_transfers.end(), [&](const Transfer& other) {
      return other.sent != nullptr && other.communicator == into.communicator && other.peer == into.peer &&
             other.bytes == into.bytes;
    });
    if (from == group_transfers.end()) continue;
    keep(into.received, from->sent, into.bytes);
    from->sent = nullptr;
  }
  group_transfers.clear();
}

}  // namespace
}  // namespace xmem::phantom

PHANTOM_EXPORT int ncclGetVersion(int* version) {
  note(Function::ncclGetVersion);
  static const int loaded = version_of_loaded_nccl();
  *version = loaded;
  return kNcclSuccess;
}

PHANTOM_EXPORT const char* ncclGetErrorString(int result) {
  note(Function::ncclGetErrorString);
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage, or not supported by the phantom GPU";
    default:
      return "unknown result code";
  }
}

PHANTOM_EXPORT const char* ncclGetLastError(void*) {
  note(Function::ncclGetLastError);
  return "";
}

PHANTOM_EXPORT int ncclGetUniqueId(UniqueId* id) {
  note(Function::ncclGetUniqueId);
  *id = random_id();
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommGetUniqueId(void*, UniqueId* id) {
  note(Function::ncclCommGetUniqueId);
  *id = random_id();
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommInitRank(void** communicator, int size, UniqueId id, int rank) {
  note(Function::ncclCommInitRank);
  return create(communicator, id, rank, size, current_device());
}

PHANTOM_EXPORT int ncclCommInitRankConfig(void** communicator, int size, UniqueId id, int rank, void*) {
  note(Function::ncclCommInitRankConfig);
  return create(communicator, id, rank, size, current_device());
}

PHANTOM_EXPORT int ncclCommInitRankScalable(void** communicator, int size, int rank, int, const UniqueId* ids, void*) {
  note(Function::ncclCommInitRankScalable);
  return create(communicator, ids[0], rank, size, current_device());
}

PHANTOM_EXPORT int ncclCommInitAll(void** communicators, int size, const int* devices) {
  note(Function::ncclCommInitAll);
  const UniqueId id = random_id();
  for (int rank = 0; rank < size; ++rank) {
    const int error = create(&communicators[rank], id, rank, size, devices == nullptr ? rank : devices[rank]);
    if (error == kNcclSuccess) continue;
    while (rank-- > 0) destroy(communicators[rank]);
    return error;
  }
  return kNcclSuccess;
}

// Ranks of one colour are ordered by their keys, equal keys by their old ranks. Should a rank never come, the new
// communicator is taken to be as large as the old one.
PHANTOM_EXPORT int ncclCommSplit(void* communicator, int color, int key, void** made, void*) {
  note(Function::ncclCommSplit);
  *made = nullptr;
  Communicator& parent = communicator_of(communicator);
  const unsigned split = parent.splits.fetch_add(1);
  const std::optional<Place> place = place_of_color(color);
  Choices choices;
  const bool alone = std::getenv("XMEM_RANKS") != nullptr;
  const bool complete = !alone && exchange_choices(parent, split, {1, color, key}, choices);
  if (color == kNoColor) return kNcclSuccess;
  int rank = place ? place->rank : parent.rank, size = place ? place->ranks.all : parent.size;
  if (complete) {
    rank = size = 0;
    for (int other = 0; other < parent.size; ++other) {
      const Choice& choice = choices[static_cast<unsigned>(other)];
      if (choice.color != color) continue;
      ++size;
      if (choice.key < key || (choice.key == key && other < parent.rank)) ++rank;
    }
  }
  const std::uint64_t number = (std::uint64_t{split} + 1) << 32 | static_cast<std::uint32_t>(color);
  return create(made, child_id(parent.id, number), rank, {size, place ? place->ranks.here : size}, parent.device);
}

PHANTOM_EXPORT int ncclCommShrink(void* communicator, const int* excluded, int count, void** made, void*, int) {
  note(Function::ncclCommShrink);
  Communicator& parent = communicator_of(communicator);
  const auto before = std::count_if(excluded, excluded + count, [&](int rank) { return rank < parent.rank; });
  const std::uint64_t number = (std::uint64_t{parent.splits.fetch_add(1)} + 1) << 32;
  return create(made, child_id(parent.id, number), parent.rank - static_cast<int>(before), parent.size - count,
                parent.device);
}

// Ranks that were there keep their number; the others have no communicator yet.
PHANTOM_EXPORT int ncclCommGrow(void* communicator, int size, const UniqueId* id, int rank, void** made, void*) {
  note(Function::ncclCommGrow);
  const UniqueId grown = id != nullptr ? *id : random_id();
  if (communicator == nullptr) return create(made, grown, rank, size, current_device());
  const Communicator& parent = communicator_of(communicator);
  return create(made, grown, parent.rank, size, parent.device);
}

PHANTOM_EXPORT int ncclCommDestroy(void* communicator) {
  note(Function::ncclCommDestroy);
  return destroy(communicator);
}

PHANTOM_EXPORT int ncclCommAbort(void* communicator) {
  note(Function::ncclCommAbort);
  return destroy(communicator);
}

PHANTOM_EXPORT int ncclCommGetAsyncError(void*, int* error) {
  note(Function::ncclCommGetAsyncError);
  *error = kNcclSuccess;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommCount(void* communicator, int* count) {
  note(Function::ncclCommCount);
  *count = communicator_of(communicator).size;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommCuDevice(void* communicator, int* device) {
  note(Function::ncclCommCuDevice);
  *device = communicator_of(communicator).device;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommUserRank(void* communicator, int* rank) {
  note(Function::ncclCommUserRank);
  *rank = communicator_of(communicator).rank;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommMemStats(void* communicator, int statistic, std::uint64_t* value) {
  note(Function::ncclCommMemStats);
  constexpr int kSuspendable = 0, kTotal = 3;
  const bool asked = statistic == kSuspendable || statistic == kTotal;
  *value = asked ? communicator_of(communicator).buffer_bytes.load() : 0;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommRegister(void*, void* buffer, std::size_t, void** handle) {
  note(Function::ncclCommRegister);
  *handle = buffer;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclCommWindowRegister(void*, void* buffer, std::size_t, void** window, int) {
  note(Function::ncclCommWindowRegister);
  *window = buffer;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclWinGetUserPtr(void*, void* window, void** buffer) {
  note(Function::ncclWinGetUserPtr);
  *buffer = window;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclMemAlloc(void** address, std::size_t size) {
  note(Function::ncclMemAlloc);
  return allocate(current_device(), size, address, Use::kNccl) == kSuccess ? kNcclSuccess : kNcclUnhandledCudaError;
}

PHANTOM_EXPORT int ncclMemFree(void* address) {
  note(Function::ncclMemFree);
  return release(address) == kSuccess ? kNcclSuccess : kNcclInvalidArgument;
}

PHANTOM_EXPORT int ncclRedOpCreatePreMulSum(int* operation, void*, int, int, void*) {
  note(Function::ncclRedOpCreatePreMulSum);
  static std::atomic<int> next{kBuiltInReductions};
  *operation = next.fetch_add(1);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclBroadcast(const void* sent, void* received, std::size_t count, int type, int, void* communicator,
                                 void* stream) {
  note(Function::ncclBroadcast);
  if (const int error = connect(communicator, NcclPart::ring)) return error;
  if (!captured(stream)) keep(received, sent, bytes_of(count, type));
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclBcast(void*, std::size_t, int, int, void* communicator, void* stream) {
  note(Function::ncclBcast);
  if (const int error = connect(communicator, NcclPart::ring)) return error;
  captured(stream);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclAllReduce(const void* sent, void* received, std::size_t count, int type, int, void* communicator,
                                 void* stream) {
  note(Function::ncclAllReduce);
  if (const int error = connect_for_all_reduce(communicator)) return error;
  if (!captured(stream)) keep(received, sent, bytes_of(count, type));
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclReduce(const void* sent, void* received, std::size_t count, int type, int, int root,
                              void* communicator, void* stream) {
  note(Function::ncclReduce);
  if (const int error = connect(communicator, NcclPart::ring)) return error;
  if (!captured(stream) && communicator_of(communicator).rank == root) keep(received, sent, bytes_of(count, type));
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclReduceScatter(const void* sent, void* received, std::size_t count, int type, int,
                                     void* communicator, void* stream) {
  note(Function::ncclReduceScatter);
  if (const int error = connect(communicator, NcclPart::ring)) return error;
  const std::size_t bytes = bytes_of(count, type);
  if (!captured(stream)) keep(received, part(sent, bytes, communicator_of(communicator).rank), bytes);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclAllGather(const void* sent, void* received, std::size_t count, int type, void* communicator,
                                 void* stream) {
  note(Function::ncclAllGather);
  if (const int error = connect(communicator, NcclPart::ring)) return error;
  if (!captured(stream)) gather_own(received, sent, bytes_of(count, type), communicator_of(communicator).size);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclGather(const void* sent, void* received, std::size_t count, int type, int root,
                              void* communicator, void* stream) {
  note(Function::ncclGather);
  if (const int error = connect_root(communicator, root)) return error;
  const Communicator& ranks = communicator_of(communicator);
  if (!captured(stream) && ranks.rank == root) gather_own(received, sent, bytes_of(count, type), ranks.size);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclScatter(const void* sent, void* received, std::size_t count, int type, int root,
                               void* communicator, void* stream) {
  note(Function::ncclScatter);
  if (const int error = connect_root(communicator, root)) return error;
  if (!captured(stream) && communicator_of(communicator).rank == root) {
    const std::size_t bytes = bytes_of(count, type);
    keep(received, part(sent, bytes, root), bytes);
  }
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclAlltoAll(const void* sent, void* received, std::size_t count, int type, void* communicator,
                                void* stream) {
  note(Function::ncclAlltoAll);
  if (const int error = connect_all_peers(communicator)) return error;
  const auto ranks = static_cast<unsigned>(communicator_of(communicator).size);
  if (!captured(stream)) keep(received, sent, bytes_of(count, type) * ranks);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclSend(const void* sent, std::size_t count, int type, int peer, void* communicator, void* stream) {
  note(Function::ncclSend);
  if (const int error = connect_peer(communicator, peer)) return error;
  return transfer({communicator, peer, sent, nullptr, bytes_of(count, type)}, stream);
}

PHANTOM_EXPORT int ncclRecv(void* received, std::size_t count, int type, int peer, void* communicator, void* stream) {
  note(Function::ncclRecv);
  if (const int error = connect_peer(communicator, peer)) return error;
  return transfer({communicator, peer, nullptr, received, bytes_of(count, type)}, stream);
}

PHANTOM_EXPORT int ncclPutSignal(const void*, std::size_t, int, int, void*, std::size_t, int, int, unsigned, void*,
                                 void* stream) {
  note(Function::ncclPutSignal);
  captured(stream);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclSignal(int, int, int, unsigned, void*, void* stream) {
  note(Function::ncclSignal);
  captured(stream);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclWaitSignal(int, void*, void*, void* stream) {
  note(Function::ncclWaitSignal);
  captured(stream);
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclGroupStart() {
  note(Function::ncclGroupStart);
  ++group_depth;
  return kNcclSuccess;
}

PHANTOM_EXPORT int ncclGroupEnd() {
  note(Function::ncclGroupEnd);
  if (group_depth == 0) return kNcclInvalidUsage;
  if (--group_depth == 0) finish_group();
  return kNcclSuccess;
}

// An estimated time of zero is none.
PHANTOM_EXPORT int ncclGroupSimulateEnd(void*) {
  note(Function::ncclGroupSimulateEnd);
  if (group_depth == 0) return kNcclInvalidUsage;
  if (--group_depth == 0) group_transfers.clear();
  return kNcclSuccess;
}

// All ranks are on one server, so that those within reach of loads and stores (LSA) are the world, and a rail has one.
PHANTOM_EXPORT Team ncclTeamWorld(void* communicator) {
  note(Function::ncclTeamWorld);
  return {communicator_of(communicator).size, communicator_of(communicator).rank, 1};
}

PHANTOM_EXPORT Team ncclTeamLsa(void* communicator) {
  note(Function::ncclTeamLsa);
  return {communicator_of(communicator).size, communicator_of(communicator).rank, 1};
}

PHANTOM_EXPORT Team ncclTeamRail(void* communicator) {
  note(Function::ncclTeamRail);
  return {1, 0, communicator_of(communicator).size};
}

PHANTOM_EXPORT int ncclTeamRankToWorld(void* communicator, Team team, int rank) {
  note(Function::ncclTeamRankToWorld);
  return communicator_of(communicator).rank + (rank - team.rank) * team.stride;
}

PHANTOM_EXPORT int ncclTeamRankToLsa(void* communicator, Team team, int rank) {
  note(Function::ncclTeamRankToLsa);
  return communicator_of(communicator).rank + (rank - team.rank) * team.stride;
}
