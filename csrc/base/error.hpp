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

// A setting has a value that cannot be meant: what it is, and what was expected.
class ConfigError : public std::invalid_argument {
 public:
  ConfigError(std::string value, std::string expected)
      : std::invalid_argument(value + ": expected " + expected),
        value_(std::move(value)),
        expected_(std::move(expected)) {}

  const std::string& value() const { return value_; }
  const std::string& expected() const { return expected_; }

 private:
  std::string value_;
  std::string expected_;
};

}  // namespace xmem
