// Drives a fuzz target where libFuzzer is not at hand: replays files, then runs mutations of them. Blind, but enough to
// keep the targets alive; takes the options of libFuzzer that it knows (-runs, -max_total_time, -seed, -max_len,
// -artifact_prefix) and ignores the others. An input that breaks the target is kept as PREFIXcrash.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "fuzz_target.hpp"

// Sanitizers end through abort(), so that the input is kept whatever went wrong.
extern "C" const char* __asan_default_options() {
  return "abort_on_error=1";
}
extern "C" const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}

namespace {

using Input = std::string;

Input running;
std::string artifact = "crash";

void keep_input(int signal_number) {
  const int file = open(artifact.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0 && write(file, running.data(), running.size()) == static_cast<ssize_t>(running.size())) {
    std::fprintf(stderr, "the input was kept as %s\n", artifact.c_str());
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void run(Input input) {
  running = std::move(input);
  // A copy of the exact length on the heap: reading past its end is found.
  const std::vector<std::uint8_t> bytes(running.begin(), running.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

class Mutations {
 public:
  Mutations(const std::vector<Input>& seeds, unsigned seed, std::size_t longest)
      : seeds_(seeds), longest_(longest), random_(seed) {}

  Input next() {
    Input input = pick(seeds_);
    for (std::size_t i = 0, count = 1 + random_() % 4; i < count; ++i) mutate(input);
    input.resize(std::min(input.size(), longest_));
    return input;
  }

 private:
  template <class Range>
  typename Range::value_type pick(const Range& range) {
    return range[random_() % std::size(range)];
  }
  std::size_t place(const Input& input) { return random_() % (input.size() + 1); }

  void mutate(Input& input) {
    // What is special to JSON and to numbers at their limits; a target of binary input takes them as bytes.
    static constexpr std::array<std::string_view, 22> kTokens{"{",
                                                              "}",
                                                              "[",
                                                              "]",
                                                              "\"",
                                                              "\\",
                                                              ",",
                                                              ":",
                                                              "\n",
                                                              "\\\"",
                                                              "},{",
                                                              "null",
                                                              "\\u0000",
                                                              "\\ud800",
                                                              "NaN",
                                                              "1e999",
                                                              "-0",
                                                              "[[[",
                                                              "]]]",
                                                              "\xEF\xBB\xBF",
                                                              "9223372036854775807",
                                                              "-9223372036854775808"};
    const std::size_t at = place(input);
    switch (random_() % 6) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < input.size()) input[at] = pick(kTokens).front();
        break;
      case 2:
        input.insert(at, pick(kTokens));
        break;
      case 3:
        input.erase(at, 1 + random_() % 16);
        break;
      case 4:
        input.insert(place(input), input.substr(at, random_() % 256));
        break;
      default: {
        const Input other = pick(seeds_);
        input.replace(at, random_() % 64, other, place(other), random_() % 256);
      }
    }
  }

  const std::vector<Input>& seeds_;
  std::size_t longest_;
  std::mt19937 random_;
};

Input contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0;
  std::uint64_t seed = 1;
  std::size_t longest = 4096;
  std::chrono::seconds limit{0};
  std::vector<std::filesystem::path> files;
  for (const std::string_view argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    const auto value = std::string(argument.substr(std::min(argument.size(), argument.find('=') + 1)));
    if (argument.starts_with("-runs=")) runs = std::stoull(value);
    if (argument.starts_with("-seed=")) seed = std::stoull(value);
    if (argument.starts_with("-max_len=")) longest = std::stoull(value);
    if (argument.starts_with("-max_total_time=")) limit = std::chrono::seconds(std::stoll(value));
    if (argument.starts_with("-artifact_prefix=")) artifact = value + "crash";
    if (argument.starts_with("-")) continue;
    if (!std::filesystem::is_directory(argument)) files.emplace_back(argument);
    if (!std::filesystem::is_directory(argument)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  for (const int number : {SIGABRT, SIGSEGV, SIGFPE, SIGILL, SIGBUS}) std::signal(number, keep_input);

  std::vector<Input> seeds{Input()};
  for (const auto& file : files) seeds.push_back(contents(file));
  for (const Input& input : seeds) run(input);

  const auto end = std::chrono::steady_clock::now() + limit;
  Mutations mutations(seeds, static_cast<unsigned>(seed), longest);
  std::uint64_t ran = 0;
  while (ran < runs || std::chrono::steady_clock::now() < end) {
    run(mutations.next());
    ++ran;
  }
  std::printf("%zu files and %llu mutations of them\n", files.size(), static_cast<unsigned long long>(ran));
  return 0;
}
