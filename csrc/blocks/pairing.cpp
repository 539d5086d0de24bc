#include "blocks/pairing.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

namespace xmem::blocks {
namespace {

using trace::Problem;

// What is live now. Addresses (or sizes, where there are none) mean something only within one device.
struct Key {
  std::int8_t device_type;
  std::int32_t device_index;
  bool by_size;
  std::int64_t value;
  friend bool operator==(const Key&, const Key&) = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    // Addresses are multiples of 64: multiply to spread them over the low bits.
    const auto mixed = static_cast<std::uint64_t>(key.value) * 0x9E3779B97F4A7C15ULL;
    const auto device = static_cast<std::uint64_t>(key.device_index) << 9 ^ static_cast<std::uint64_t>(key.device_type)
                                                                                << 1;
    return static_cast<std::size_t>(mixed ^ mixed >> 32 ^ device ^ static_cast<std::uint64_t>(key.by_size));
  }
};

class Pairing {
 public:
  Pairing(const trace::MemoryTable& memory, trace::Diagnostics& diagnostics)
      : memory_(memory), diagnostics_(diagnostics) {
    live_.reserve(1 << 12);
  }

  BlockTable run() {
    for (std::size_t event = 0; event < memory_.size(); ++event) {
      if (memory_.bytes[event] > 0) {
        allocate(event);
      } else if (memory_.bytes[event] < 0) {
        free(event);
      } else {
        diagnostics_.add(Problem::empty_memory_event);
      }
    }
    return table();
  }

 private:
  struct Block {
    std::int32_t alloc_event = -1;
    std::int32_t free_event = -1;
    Nanoseconds free_ns = kNever;
    std::uint8_t flags = kNeverFreed;
  };

  Key key_of(std::size_t event) const {
    const bool by_size = memory_.address[event] == -1;
    const Bytes bytes = memory_.bytes[event];
    return {memory_.device_type[event], memory_.device_index[event], by_size,
            by_size ? (bytes < 0 ? -bytes : bytes) : memory_.address[event]};
  }

  void allocate(std::size_t event) {
    auto& live = live_[key_of(event)];
    if (!live.empty() && memory_.address[event] != -1) {
      diagnostics_.add(Problem::missed_free);
      close(live.back(), event, kOverwritten);
      live.pop_back();
    }
    live.push_back(static_cast<std::int32_t>(allocated_.size()));
    allocated_.push_back({.alloc_event = static_cast<std::int32_t>(event)});
  }

  void free(std::size_t event) {
    const auto live = live_.find(key_of(event));
    if (live == live_.end() || live->second.empty()) {
      diagnostics_.add(Problem::free_of_unknown_address);
      born_before_.push_back(static_cast<std::int32_t>(event));
      return;
    }
    const std::int32_t block = live->second.back();
    live->second.pop_back();
    const auto alloc_event = static_cast<std::size_t>(allocated_[static_cast<std::size_t>(block)].alloc_event);
    if (memory_.bytes[alloc_event] != -memory_.bytes[event]) diagnostics_.add(Problem::free_size_mismatch);
    close(block, event, 0);
  }

  void close(std::int32_t block, std::size_t event, std::uint8_t flags) {
    Block& closed = allocated_[static_cast<std::size_t>(block)];
    closed.free_ns = memory_.time_ns[event];
    closed.free_event = static_cast<std::int32_t>(event);
    closed.flags = flags;
  }

  BlockTable table() const {
    BlockTable blocks;
    reserve(blocks, born_before_.size() + allocated_.size());
    for (const std::int32_t event : born_before_) {
      append(blocks, {-1, event, memory_.time_ns[static_cast<std::size_t>(event)], kBornBefore}, event);
    }
    for (const Block& block : allocated_) append(blocks, block, block.alloc_event);
    return blocks;
  }

  static void reserve(BlockTable& blocks, std::size_t rows) {
    const auto each = [rows](auto&... column) { (column.reserve(rows), ...); };
    each(blocks.address, blocks.size_bytes, blocks.alloc_ns, blocks.free_ns, blocks.device_type, blocks.device_index,
         blocks.thread, blocks.alloc_event, blocks.free_event, blocks.flags);
  }

  // `source` is the event that says what the block is.
  void append(BlockTable& blocks, const Block& block, std::int32_t source) const {
    const auto event = static_cast<std::size_t>(source);
    blocks.address.push_back(memory_.address[event]);
    blocks.size_bytes.push_back(memory_.bytes[event] < 0 ? -memory_.bytes[event] : memory_.bytes[event]);
    blocks.alloc_ns.push_back(block.alloc_event < 0 ? memory_.time_ns.front() : memory_.time_ns[event]);
    blocks.free_ns.push_back(block.free_ns);
    blocks.device_type.push_back(memory_.device_type[event]);
    blocks.device_index.push_back(memory_.device_index[event]);
    blocks.thread.push_back(memory_.thread[event]);
    blocks.alloc_event.push_back(block.alloc_event);
    blocks.free_event.push_back(block.free_event);
    blocks.flags.push_back(block.flags);
  }

  const trace::MemoryTable& memory_;
  trace::Diagnostics& diagnostics_;
  std::unordered_map<Key, std::vector<std::int32_t>, KeyHash> live_;  // more than one only where there are no addresses
  std::vector<Block> allocated_;
  std::vector<std::int32_t> born_before_;
};

}  // namespace

BlockTable pair_blocks(const trace::MemoryTable& memory, trace::Diagnostics& diagnostics) {
  return Pairing(memory, diagnostics).run();
}

}  // namespace xmem::blocks
