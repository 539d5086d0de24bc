// The profiler names a Python frame `PATH(LINE): FUNCTION`.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace xmem::trace {

// Length of PATH, which ends in ".py"; npos when the name is of another form.
std::size_t python_file_end(std::string_view frame);

// Whether the frame runs a file of the user's own, not of the standard library or of an installed package.
bool is_user_frame(std::string_view frame);

// The same answer, remembered: a trace names a few thousand frames millions of times. Memory is bounded.
class UserFrames {
 public:
  UserFrames();
  bool contains(std::string_view frame);

 private:
  struct Known {
    std::string frame;
    bool is_user = false;
  };

  std::vector<Known> known_;  // each frame has one place, by its hash; the last one asked for holds it
};

}  // namespace xmem::trace
