// Says of every block who allocated it and when in the training step: operator, module, source line, iteration, phase,
// category. The rules are those of docs/trace_model.md, sections 5 and 6.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attribution/phases.hpp"
#include "base/string_table.hpp"
#include "blocks/block_table.hpp"
#include "trace/trace.hpp"

namespace xmem::attribution {

enum class Category : std::uint8_t {
  unknown = 0,
  parameter = 1,
  buffer = 2,
  gradient = 3,
  optimizer_state = 4,
  input = 5,
  activation = 6,
  workspace = 7,
  temporary = 8
};

// Tensors that the capture named, as columns: what lies at an address at a time.
struct NamedTensors {
  std::span<const Category> category;
  std::span<const std::int64_t> address;
  std::span<const Nanoseconds> time_ns;
  bool on_gpu = false;  // they lie on a GPU (a phantom one), else in host memory that stands for one
};

// One row a block, in the order of the BlockTable.
struct Attribution {
  std::vector<std::int32_t> operation;       // innermost operator, row of the EventTable, -1 = none
  std::vector<std::int32_t> root_operation;  // outermost operator that is not the autograd engine's
  std::vector<std::int32_t> forward_link;    // forward operator of a backward one
  std::vector<Phase> phase, free_phase;
  std::vector<std::int32_t> iteration, free_iteration;
  std::vector<NameId> module, source_line;  // into `modules` and `lines`
  std::vector<std::uint8_t> host;           // 1 = host memory on a machine with a GPU
  std::vector<Category> category;
  std::vector<std::int32_t> tensor;  // row of NamedTensors that names the block, -1 = none
  StringTable modules, lines;
  std::int32_t optimizer_steps = 0;

  std::size_t size() const { return operation.size(); }
};

Attribution attribute(const trace::Trace& trace, const blocks::BlockTable& blocks, const NamedTensors& tensors);

}  // namespace xmem::attribution
