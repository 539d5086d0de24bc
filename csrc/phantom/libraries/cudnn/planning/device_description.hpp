// The text that CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION takes: an object of numbers, lists of numbers and one name.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace xmem::phantom::cudnn {

// Reads numbers out of the text, which must outlive it.
class DeviceDescription {
 public:
  explicit DeviceDescription(const std::string& text) : text_(text) {}

  template <typename Number>
  void read(const char* member, Number* values, int count = 1) {
    std::string quoted = "\"";
    quoted.append(member).append("\":");
    const std::size_t at = text_.find(quoted);
    if (at == std::string::npos) {
      complete_ = false;
      return;
    }
    const char* next = text_.c_str() + text_.find(':', at) + 1;
    for (int i = 0; i < count; ++i) {
      next += std::strspn(next, " [,");
      char* end = nullptr;
      values[i] = static_cast<Number>(std::strtoll(next, &end, 10));
      complete_ = complete_ && end != next;
      next = end;
    }
  }

  // The numbers of a list of any length, as many as there is room for; how many there are.
  template <typename Number>
  int read_list(const char* member, Number* values, int room) const {
    std::string quoted = "\"";
    quoted.append(member).append("\":[");
    const std::size_t at = text_.find(quoted);
    if (at == std::string::npos) return 0;
    const char* next = text_.c_str() + at + quoted.size();
    for (int count = 0; count < room; ++count) {
      next += std::strspn(next, " ,");
      char* end = nullptr;
      values[count] = static_cast<Number>(std::strtoll(next, &end, 10));
      if (end == next) return count;
      next = end;
    }
    return room;
  }

  // Whether all that was read was there.
  bool complete() const { return complete_; }

 private:
  const std::string& text_;
  bool complete_ = true;
};

}  // namespace xmem::phantom::cudnn
