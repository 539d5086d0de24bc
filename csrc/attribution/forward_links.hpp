// From a backward operator to the forward operator that caused it, by autograd's sequence number.
//
// Every forward operator that records a node carries the node's number, and so do the operators of its backward.
// Several forward operators may show one number (an outer operator and the inner one that made the node): the last to
// begin is the one that made it. Numbers are unique within a thread for the whole run.
#pragma once

#include <cstdint>
#include <vector>

#include "attribution/phases.hpp"
#include "trace/event_table.hpp"

namespace xmem::attribution {

class ForwardLinks {
 public:
  ForwardLinks(const trace::EventTable& events, const SpanRoles& roles);

  // Row of the forward operator of the backward operator in `row`, -1 where there is none or the operator is not a
  // backward one.
  std::int32_t of(std::size_t row) const;

 private:
  struct Forward {
    std::int64_t sequence_number;
    Nanoseconds begin_ns;
    std::int32_t row;
  };

  const trace::EventTable& events_;
  std::vector<Forward> forward_;  // by sequence number, begin, row
  std::vector<bool> backward_;    // rows that are, or lie below, an evaluation of the autograd engine
};

}  // namespace xmem::attribution
