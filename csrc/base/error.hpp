// The exceptions of the core. A message ends with what to do; the core never prints or aborts.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace xmem {

// The input is not usable: where in the file, and at which event of the event array (-1 = not known).
class TraceError : public std::runtime_error {
 public:
  explicit TraceError(std::string message, std::int64_t byte_offset = -1, std::int64_t event_index = -1)
      : std::runtime_error(std::move(message)), byte_offset_(byte_offset), event_index_(event_index) {}

  std::int64_t byte_offset() const { return byte_offset_; }
  std::int64_t event_index() const { return event_index_; }

 private:
  std::int64_t byte_offset_;
  std::int64_t event_index_;
};

// A setting is invalid: what is wrong, and what to do (may be empty).
class ConfigError : public std::invalid_argument {
 public:
  explicit ConfigError(std::string message, std::string hint = "")
      : std::invalid_argument(hint.empty() ? message : message + "; " + hint),
        message_(std::move(message)),
        hint_(std::move(hint)) {}

  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }

 private:
  std::string message_;
  std::string hint_;
};

}  // namespace xmem
