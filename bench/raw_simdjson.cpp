// The limit that readers of traces are measured against: simdjson alone, doing as little as JSON allows.
//
//   raw_simdjson FILE [WINDOW_BYTES]        prints one JSON object on stdout
//
// Loads the file and walks with On-Demand over every key and every value, without decoding one of them. With a second
// argument, the event array is parsed in windows of about so many bytes, which stay in the processor's cache and have
// no limit of 4 GiB; they are cut where the profiler's own layout ends an event, so only its files are read in this
// way. What was in the file is counted in a second walk, which is not timed.
#include <simdjson.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

namespace ondemand = simdjson::ondemand;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kEventBoundary = "\n  },\n  {";
constexpr std::string_view kArrayBegin = "\"traceEvents\": [";
constexpr std::string_view kArrayEnd = "\n  }\n  ]";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What a walk over all keys sees; printed, so that no part of the walk can be left out.
struct Walked {
  std::int64_t keys = 0;
  std::int64_t values = 0;
  std::int64_t token_bytes = 0;
};

// ondemand::document and ondemand::value both.
template <class Value>
void walk(Value&& value, Walked& walked) {
  switch (value.type()) {
    case ondemand::json_type::object:
      for (ondemand::field field : value.get_object()) {
        ++walked.keys;
        walk(field.value(), walked);
      }
      return;
    case ondemand::json_type::array:
      for (ondemand::value element : value.get_array()) walk(element, walked);
      return;
    default:
      ++walked.values;
      walked.token_bytes += static_cast<std::int64_t>(std::string_view(value.raw_json_token()).size());
  }
}

struct Contents {
  std::map<std::string, std::int64_t, std::less<>> events_by_category;
  std::int64_t memory_events = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t freed_bytes = 0;

  void count_memory(std::int64_t bytes) {
    ++memory_events;
    (bytes > 0 ? allocated_bytes : freed_bytes) += std::abs(bytes);
  }
};

void count(ondemand::object event, Contents& contents) {
  std::string category;
  bool memory = false;
  for (ondemand::field field : event) {
    const std::string_view key = field.unescaped_key();
    if (key == "cat") {
      category = std::string_view(field.value());
    } else if (key == "name") {
      memory = std::string_view(field.value()) == "[memory]";
    } else if (key == "args" && memory) {
      contents.count_memory(field.value()["Bytes"].get_int64());
    }
  }
  ++contents.events_by_category[category];
}

class File {
 public:
  explicit File(const char* path) : file_(std::fopen(path, "rb"), &std::fclose) {
    if (!file_) throw std::runtime_error(std::string("cannot open ") + path);
  }
  std::size_t read(char* into, std::size_t bytes) { return std::fread(into, 1, bytes, file_.get()); }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// Calls `use(array)` with a simdjson array of whole events, window by window.
template <class Use>
void for_each_window(const char* path, std::size_t window_bytes, Use&& use) {
  File file(path);
  ondemand::parser parser;
  std::vector<char> buffer(2 * window_bytes + simdjson::SIMDJSON_PADDING + kEventBoundary.size());
  std::size_t end = file.read(buffer.data(), window_bytes);
  const std::size_t array = std::string_view(buffer.data(), end).find(kArrayBegin);
  if (array == std::string_view::npos) throw std::runtime_error("no event array in the first window");
  std::size_t begin = array + kArrayBegin.size() - 1;  // of the window's '['
  for (bool last = false; !last;) {
    std::memmove(buffer.data(), buffer.data() + begin, end - begin);
    end -= begin;
    const std::size_t got = file.read(buffer.data() + end, window_bytes);
    end += got;
    last = got < window_bytes;
    const std::string_view text(buffer.data(), end);
    const std::size_t boundary = last ? text.rfind(kArrayEnd) : text.rfind(kEventBoundary);
    if (boundary == std::string_view::npos) throw std::runtime_error("no event ends in a window");
    const std::size_t comma = boundary + 4;  // the byte after "\n  }", which becomes the ']' of the window
    begin = comma;
    const char after = buffer[comma];
    buffer[comma] = ']';
    ondemand::document document = parser.iterate(buffer.data(), comma + 1, buffer.size());
    use(document.get_array());
    buffer[comma] = after;
    if (!last) buffer[begin] = '[';
  }
}

void print(double load_s, double walk_s, const Walked& walked, const Contents& contents) {
  std::printf("{\"load_s\": %.6f, \"walk_s\": %.6f, \"read_s\": %.6f, ", load_s, walk_s, load_s + walk_s);
  std::printf("\"keys\": %lld, \"values\": %lld, \"token_bytes\": %lld, ", static_cast<long long>(walked.keys),
              static_cast<long long>(walked.values), static_cast<long long>(walked.token_bytes));
  std::printf("\"answer\": {\"events\": {");
  const char* separator = "";
  for (const auto& [category, events] : contents.events_by_category) {
    std::printf("%s\"%s\": %lld", separator, category.c_str(), static_cast<long long>(events));
    separator = ", ";
  }
  std::printf("}, \"memory_events\": %lld, \"allocated_bytes\": %lld, \"freed_bytes\": %lld}}\n",
              static_cast<long long>(contents.memory_events), static_cast<long long>(contents.allocated_bytes),
              static_cast<long long>(contents.freed_bytes));
}

void run_whole(const char* path) {
  const auto begin = Clock::now();
  const simdjson::padded_string text = simdjson::padded_string::load(path);
  const double load_s = seconds_since(begin);
  ondemand::parser parser;
  Walked walked;
  {
    ondemand::document document = parser.iterate(text);
    walk(document, walked);
  }
  const double walk_s = seconds_since(begin) - load_s;
  Contents contents;
  ondemand::document document = parser.iterate(text);
  for (ondemand::value event : document["traceEvents"].get_array()) count(event.get_object(), contents);
  print(load_s, walk_s, walked, contents);
}

void run_windows(const char* path, std::size_t window_bytes) {
  const auto begin = Clock::now();
  Walked walked;
  for_each_window(path, window_bytes, [&](ondemand::array events) {
    for (ondemand::value event : events) walk(event, walked);
  });
  const double walk_s = seconds_since(begin);
  Contents contents;
  for_each_window(path, window_bytes, [&](ondemand::array events) {
    for (ondemand::value event : events) count(event.get_object(), contents);
  });
  print(0, walk_s, walked, contents);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view window = argc == 3 ? argv[2] : "";
  std::size_t window_bytes = 0;
  const auto [end, problem] = std::from_chars(window.data(), window.data() + window.size(), window_bytes);
  if (argc < 2 || argc > 3 || (argc == 3 && (problem != std::errc{} || end != window.data() + window.size()))) {
    std::fputs("usage: raw_simdjson FILE [WINDOW_BYTES]\n", stderr);
    return 2;
  }
  try {
    if (argc == 2) {
      run_whole(argv[1]);
    } else {
      run_windows(argv[1], window_bytes);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "raw_simdjson: %s: %s\n", argv[1], error.what());
    return 3;
  }
  return 0;
}
