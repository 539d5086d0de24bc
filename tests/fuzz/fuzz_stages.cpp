// What was read goes on through the stages: blocks, attribution, request sequence, replay. Nothing a file can hold
// breaks their laws.
#include <optional>

#include "attribution/attribute.hpp"
#include "base/error.hpp"
#include "blocks/pairing.hpp"
#include "sequence/request_sequence.hpp"
#include "simulation/replay.hpp"
#include "trace/read_trace.hpp"
#include "trace_laws.hpp"

using xmem::fuzz::require;

namespace {

std::optional<xmem::trace::Trace> read(std::string_view text) {
  try {
    xmem::trace::TraceReader reader;
    reader.feed(text);
    return reader.finish();
  } catch (const xmem::TraceError&) {
    return std::nullopt;
  }
}

void require_block_laws(const xmem::blocks::BlockTable& blocks, const xmem::trace::MemoryTable& memory) {
  const auto rows = static_cast<std::int32_t>(memory.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const bool born_before = (blocks.flags[b] & xmem::blocks::kBornBefore) != 0;
    const bool never_freed = (blocks.flags[b] & xmem::blocks::kNeverFreed) != 0;
    require(blocks.size_bytes[b] > 0, "a block has a size");
    require(blocks.alloc_ns[b] <= blocks.free_ns[b], "a block is not freed before it is allocated");
    require(born_before == (blocks.alloc_event[b] == -1), "a block has an allocation, or was born before");
    require(never_freed == (blocks.free_event[b] == -1), "a block has a free, or lives on");
    require(never_freed == (blocks.free_ns[b] == xmem::kNever), "what lives on has no time of a free");
    require(blocks.alloc_event[b] < rows && blocks.free_event[b] < rows, "events of a block are rows");
  }
}

void require_attribution_laws(const xmem::attribution::Attribution& found, const xmem::trace::EventTable& spans,
                              std::size_t blocks) {
  require(found.size() == blocks, "every block is attributed");
  const auto is_operator = [&](std::int32_t row) {
    return row == -1 || (row >= 0 && static_cast<std::size_t>(row) < spans.size() &&
                         spans.kind[static_cast<std::size_t>(row)] == xmem::trace::SpanKind::operation);
  };
  for (std::size_t b = 0; b < blocks; ++b) {
    require(is_operator(found.operation[b]) && is_operator(found.root_operation[b]), "operators are operators");
    require(is_operator(found.forward_link[b]), "links lead to operators");
    require(found.module[b].value < static_cast<std::int32_t>(found.modules.size()), "modules are known");
    require(found.source_line[b].value < static_cast<std::int32_t>(found.lines.size()), "lines are known");
    require(found.category[b] <= xmem::attribution::Category::temporary, "categories are known");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto trace = read(xmem::fuzz::as_text(data, size));
  if (!trace) return 0;
  const auto blocks = xmem::blocks::pair_blocks(trace->memory, trace->diagnostics);
  require_block_laws(blocks, trace->memory);
  require_attribution_laws(xmem::attribution::attribute(*trace, blocks, {}), trace->events, blocks.size());

  const auto sequence = xmem::sequence::make_request_sequence({blocks.alloc_ns, blocks.free_ns, blocks.size_bytes, {}});
  std::vector<std::uint8_t> kinds;
  for (const auto kind : sequence.kind) kinds.push_back(static_cast<std::uint8_t>(kind));
  const std::vector<std::int64_t> streams(blocks.size(), 0);
  const auto replay = xmem::simulation::replay({kinds, sequence.block, blocks.size_bytes, streams}, {});
  require(replay.timeline.reserved.size() <= kinds.size(), "no more rows than requests");
  require(replay.peaks.allocated.bytes >= replay.peaks.requested.bytes, "rounding never takes away");
  return 0;
}
