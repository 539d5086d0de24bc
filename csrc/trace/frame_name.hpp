// The profiler names a Python frame `PATH(LINE): FUNCTION`.
#pragma once

#include <cstddef>
#include <string_view>

namespace xmem::trace {

// Length of PATH, which ends in ".py"; npos when the name is of another form.
std::size_t python_file_end(std::string_view frame);

// Whether the frame runs a file of the user's own, not of the standard library or of an installed package.
bool is_user_frame(std::string_view frame);

}  // namespace xmem::trace
