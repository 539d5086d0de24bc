// What a pickle would build, checked before anything is built: the gate in front of Python's own reader.
//
// A memory snapshot (torch.cuda.memory._dump_snapshot) is a pickle of lists, dicts, strings and numbers. A hostile or
// damaged one can import and call, fill memory from a few bytes (a memo of 2^31 places, a string longer than the file),
// nest until the reader's stack ends, hold structures that are exponential when they are printed, or numbers that
// cannot be printed. One pass over the opcodes (Lib/pickletools.py of CPython 3.13), without building anything.
#pragma once

#include <string_view>

namespace xmem::snapshot {

// Throws TraceError, with the byte offset, for a pickle that
//   - is cut short or broken,
//   - asks to import, call or build an object,
//   - is nested more than 100 levels deep, or holds a container that is filled after it became part of another (so
//     that nothing contains itself),
//   - holds an integer of more than 16 bytes, a tuple of more than 1,000 values with those of its tuples (hashing one
//     that is shared level by level has no end), or more than 10,000 keys that are no strings (hashes can be chosen),
//   - would take more than 64 MiB and 40 times its own length in memory.
void check_plain_pickle(std::string_view content);

}  // namespace xmem::snapshot
