// Strong ids: an index into one kind of column. Mixing two kinds does not compile.
#pragma once

#include <compare>
#include <cstdint>

namespace xmem {

template <class Tag>
struct Id {
  std::int32_t value = -1;  // -1 = none, in every column and in Python

  constexpr bool is_none() const { return value < 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using NameId = Id<struct NameTag>;  // into the StringTable of a trace

}  // namespace xmem
