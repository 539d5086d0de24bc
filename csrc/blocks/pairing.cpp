#include "blocks/pairing.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include "base/huge_pages.hpp"

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

// The last block that lives at each key. Keys are never taken out: an address that is free again keeps its place, for
// the next block there.
class Live {
 public:
  // The place of a key, which is made if it has none: row of the last block, -1 for none. Good until the next call.
  std::int32_t& at(const Key& key) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[find(key)];
    if (!slot.used) {
      slot = {key, -1, true};
      ++used_;
    }
    return slot.block;
  }

 private:
  struct Slot {
    Key key{};
    std::int32_t block = -1;
    bool used = false;
  };

  static std::size_t hash(const Key& key) {
    // Addresses are multiples of 64: multiply to spread them over the low bits.
    const auto mixed = static_cast<std::uint64_t>(key.value) * 0x9E3779B97F4A7C15ULL;
    const auto device = static_cast<std::uint64_t>(key.device_index) << 9 ^ static_cast<std::uint64_t>(key.device_type)
                                                                                << 1;
    return static_cast<std::size_t>(mixed ^ mixed >> 32 ^ device ^ static_cast<std::uint64_t>(key.by_size));
  }

  std::size_t find(const Key& key) const {
    std::size_t index = hash(key) & (slots_.size() - 1);
    while (slots_[index].used && slots_[index].key != key) index = (index + 1) & (slots_.size() - 1);
    return index;
  }

  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.used) slots_[find(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1 << 12);  // a power of two, at most half of them used
  std::size_t used_ = 0;
};

class Pairing {
 public:
  Pairing(const trace::MemoryTable& memory, trace::Diagnostics& diagnostics)
      : memory_(memory), diagnostics_(diagnostics) {}

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
    std::int32_t below = -1;  // the block of the same key that was live before; some only where there are no addresses
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
    std::int32_t& last = live_.at(key_of(event));
    if (last >= 0 && memory_.address[event] != -1) {
      diagnostics_.add(Problem::missed_free);
      close(last, event, kOverwritten);
      last = block_at(last).below;
    }
    allocated_.push_back({.alloc_event = static_cast<std::int32_t>(event), .below = last});
    last = static_cast<std::int32_t>(allocated_.size()) - 1;
  }

  void free(std::size_t event) {
    std::int32_t& last = live_.at(key_of(event));
    if (last < 0) {
      diagnostics_.add(Problem::free_of_unknown_address);
      born_before_.push_back(static_cast<std::int32_t>(event));
      return;
    }
    const std::int32_t block = std::exchange(last, block_at(last).below);
    const auto alloc_event = static_cast<std::size_t>(block_at(block).alloc_event);
    if (memory_.bytes[alloc_event] != -memory_.bytes[event]) diagnostics_.add(Problem::free_size_mismatch);
    close(block, event, 0);
  }

  Block& block_at(std::int32_t row) { return allocated_[static_cast<std::size_t>(row)]; }

  void close(std::int32_t block, std::size_t event, std::uint8_t flags) {
    Block& closed = block_at(block);
    closed.free_ns = memory_.time_ns[event];
    closed.free_event = static_cast<std::int32_t>(event);
    closed.flags = flags;
  }

  BlockTable table() const {
    BlockTable blocks;
    reserve(blocks, born_before_.size() + allocated_.size());
    for (const std::int32_t event : born_before_) {
      append(blocks, {-1, -1, event, memory_.time_ns[static_cast<std::size_t>(event)], kBornBefore}, event);
    }
    for (const Block& block : allocated_) append(blocks, block, block.alloc_event);
    return blocks;
  }

  static void reserve(BlockTable& blocks, std::size_t rows) {
    const auto each = [rows](auto&... column) { (reserve_on_huge_pages(column, rows), ...); };
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
  Live live_;
  std::vector<Block> allocated_;
  std::vector<std::int32_t> born_before_;
};

}  // namespace

BlockTable pair_blocks(const trace::MemoryTable& memory, trace::Diagnostics& diagnostics) {
  return Pairing(memory, diagnostics).run();
}

}  // namespace xmem::blocks
