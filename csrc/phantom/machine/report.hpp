// What the run has held so far, for the process that is captured: it writes this down when its recording ends.
#pragma once

#include <cstddef>
#include <string>

namespace xmem::phantom {

// JSON: a list with an object for each card that a process of the run had a context on.
//   card             its number in the machine
//   peak_bytes       the most that all processes held at once; the others describe this instant
//   contexts         of how many processes
//   context_bytes    of all of them
//   nccl_bytes, library_bytes  of what is not asked for by programs themselves
//   managed_bytes, managed_largest_bytes  managed memory of all processes at its most, and its largest allocation; none
//                    of it is in peak_bytes
std::string cards_as_json();

// Writes a text for the Python side as far as there is room, with a zero at the end, and returns how long it is
// without.
std::size_t copy_out(const std::string& text, char* to, std::size_t room);

}  // namespace xmem::phantom
