// A test program in one header: TEST defines a case, CHECK and CHECK_EQUAL report and go on, CHECK_THROWS names the
// type.
//
// Why not GoogleTest: the build takes its dependencies from Python wheels alone (a fresh machine has git, make, a C++
// compiler and Python), and no maintained C++ test framework is published as one.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace xmem::testing {

struct Case {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

template <class T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "(a value that cannot be printed)";
  }
  return out.str();
}

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::cerr << file << ":" << line << ": " << what << "\n";
}

inline int run_all() {
  int failed_cases = 0;
  for (const Case& test : cases()) {
    const int before = failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    if (failures() != before) {
      ++failed_cases;
      std::cerr << "FAILED " << test.name << "\n";
    }
  }
  std::cout << cases().size() - static_cast<std::size_t>(failed_cases) << " passed, " << failed_cases << " failed\n";
  return failed_cases == 0 ? 0 : 1;
}

}  // namespace xmem::testing

#define TEST(name)                                                            \
  static void test_##name();                                                  \
  static const ::xmem::testing::Register register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) ::xmem::testing::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQUAL(actual, expected)                                                                           \
  do {                                                                                                          \
    const auto& check_actual = (actual);                                                                        \
    const auto& check_expected = (expected);                                                                    \
    if (!(check_actual == check_expected))                                                                      \
      ::xmem::testing::fail(__FILE__, __LINE__,                                                                 \
                            std::string(#actual " is ") + ::xmem::testing::show(check_actual) + ", expected " + \
                                ::xmem::testing::show(check_expected));                                         \
  } while (false)

#define CHECK_THROWS(expression, type)                                                                 \
  do {                                                                                                 \
    bool check_thrown = false;                                                                         \
    try {                                                                                              \
      static_cast<void>(expression);                                                                   \
    } catch (const type&) {                                                                            \
      check_thrown = true;                                                                             \
    }                                                                                                  \
    if (!check_thrown) ::xmem::testing::fail(__FILE__, __LINE__, #expression " did not throw " #type); \
  } while (false)
