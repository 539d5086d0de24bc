#include "snapshot/plain_pickle.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"

namespace xmem::snapshot {
namespace {

constexpr unsigned kMostNested = 100;
constexpr std::size_t kMostBytesOfInteger = 16;
constexpr std::size_t kMostBytesOfNumberLine = 100;
constexpr std::size_t kMostOtherKeys = 10'000;
constexpr unsigned kMostInTuple = 1'000;
constexpr std::size_t kMostShown = 100;
constexpr std::uint8_t kNewestProtocol = 5;

// Text of the file for a message.
std::string shown(std::string_view text) {
  std::string clean(text.substr(0, kMostShown));
  std::ranges::replace_if(clean, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > kMostShown ? clean + "..." : clean;
}

// What the values take in CPython, about.
constexpr Bytes kNumberBytes = 32;
constexpr Bytes kStringBytes = 56;
constexpr Bytes kListBytes = 64;
constexpr Bytes kDictBytes = 64;
constexpr Bytes kElementBytes = 8;
constexpr Bytes kItemBytes = 40;
constexpr Bytes kMemoBytes = 16;

constexpr Bytes allowed_bytes(std::size_t length) {
  return (Bytes{64} << 20) + 40 * static_cast<Bytes>(length);
}

enum class Shape : std::uint8_t { list, dict, set, tuple };

struct Container {
  std::uint16_t weight = 1;  // of a tuple or set: its values, shared ones as often as they are reached
  std::uint8_t depth = 1;
  Shape shape = Shape::list;
  bool is_part = false;  // of another container, so that it is complete
};

// A value on the stack or in the memo.
struct Value {
  static constexpr std::uint32_t kOther = 0;
  static constexpr std::uint32_t kString = 1;
  static constexpr std::uint32_t kContainers = 2;

  std::uint32_t what = kOther;  // a kind, or kContainers and more: of a container

  bool is_container() const { return what >= kContainers; }
  std::size_t container() const { return what - kContainers; }
};

class Scan {
 public:
  explicit Scan(std::string_view content) : content_(content) {}

  void run() {
    while (!step()) {
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw TraceError(what, static_cast<std::int64_t>(opcode_at_));
  }
  [[noreturn]] void refuse_cut() const {
    throw TraceError("the snapshot is cut short: " + std::to_string(content_.size()) + " bytes; copy it again",
                     static_cast<std::int64_t>(content_.size()));
  }
  [[noreturn]] void refuse_broken(const char* what) const {
    refuse(std::string("not a pickle of torch.cuda.memory._dump_snapshot (") + what + "); pass a file that it wrote");
  }
  [[noreturn]] void refuse_import(const std::string& what) const {
    refuse("a snapshot holds only plain data; this file asks to " + what +
           ": refused. Do not open it with pickle.load; get the snapshot again from a source that you trust");
  }

  // Arguments.

  std::string_view take(std::uint64_t length) {
    if (length > content_.size() - at_) refuse_cut();
    const std::string_view taken = content_.substr(at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return taken;
  }
  std::uint64_t number(std::size_t bytes) {
    const std::string_view taken = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(taken[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = content_.find('\n', at_);
    if (end == std::string_view::npos) refuse_cut();
    const std::string_view taken = content_.substr(at_, end - at_);
    at_ = end + 1;
    return taken;
  }
  std::uint64_t number_line() {
    const std::string_view text = line();
    if (text.empty() || text.size() > 18 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) {
      refuse_broken("a place in the memo is no number");
    }
    return std::stoull(std::string(text));
  }

  // The stack.

  void push(Value value) { stack_.push_back(value); }
  void push_number(std::string_view text, std::size_t most) {
    if (text.size() > most)
      refuse("an integer of " + std::to_string(text.size()) + " digits or bytes, which no snapshot holds");
    spend(kNumberBytes);
    push(Value());
  }
  void push_string(std::string_view text) {
    spend(kStringBytes + static_cast<Bytes>(text.size()));
    strings_[0] = strings_[1];
    strings_[1] = text;
    push({Value::kString});
  }
  void push_container(Shape shape) {
    if (containers_.size() >= (std::size_t{1} << 30) - 1) refuse("more containers than any snapshot holds");
    spend(shape == Shape::dict ? kDictBytes : kListBytes);
    push({Value::kContainers + static_cast<std::uint32_t>(containers_.size())});
    containers_.push_back({.shape = shape});
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Value pop() {
    if (stack_.size() <= floor()) refuse_broken("the stack is empty");
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) refuse_broken("a mark is missing");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  // Containers.

  Container& top_container(std::size_t below, Shape shape) {
    if (stack_.size() < below + 1 || stack_.size() - below - 1 < floor()) refuse_broken("the stack is empty");
    const Value value = stack_[stack_.size() - below - 1];
    if (!value.is_container() || containers_[value.container()].shape != shape) {
      refuse_broken("an element is added to another kind of value");
    }
    return containers_[value.container()];
  }
  void add(Container& into, Value value) {
    if (into.is_part) refuse_broken("a container grows after it became part of another");
    spend(kElementBytes);
    if (!value.is_container()) return;
    Container& part = containers_[value.container()];
    if (&part == &into) refuse_broken("a container holds itself");
    part.is_part = true;
    if (part.depth >= kMostNested) {
      refuse("values are nested more than " + std::to_string(kMostNested) + " levels deep, which no snapshot is");
    }
    into.depth = std::max<std::uint8_t>(into.depth, static_cast<std::uint8_t>(part.depth + 1));
    if (into.shape == Shape::list || into.shape == Shape::dict) return;
    if (into.weight + part.weight > kMostInTuple) {
      refuse("a tuple of more than " + std::to_string(kMostInTuple) + " values, which no snapshot holds");
    }
    into.weight = static_cast<std::uint16_t>(into.weight + part.weight);
  }
  void count_key(Value key) {
    spend(kItemBytes);
    if (key.what == Value::kString || ++other_keys_ <= kMostOtherKeys) return;
    refuse("more than " + std::to_string(kMostOtherKeys) + " keys that are no strings, which no snapshot has");
  }
  // Moves what lies above `from` into the container.
  void fill(Container& into, std::size_t from) {
    const std::size_t count = stack_.size() - from;
    if (into.shape == Shape::dict && count % 2 != 0) refuse_broken("a key without a value");
    for (std::size_t i = 0; i < count; ++i) {
      if (into.shape == Shape::set || (into.shape == Shape::dict && i % 2 == 0)) count_key(stack_[from + i]);
      add(into, stack_[from + i]);
    }
    stack_.resize(from);
  }
  void fill_from_mark(Shape shape) {
    const std::size_t from = pop_mark();
    if (from > stack_.size()) refuse_broken("a mark is missing");
    fill(top_container(stack_.size() - from, shape), from);
  }
  void make(Shape shape, std::size_t from) {
    if (from > stack_.size() || from < floor()) refuse_broken("the stack is empty");
    push_container(shape);
    const Value made = stack_.back();
    stack_.pop_back();
    fill(containers_[made.container()], from);
    push(made);
  }
  void make_of_last(std::size_t count) {
    if (stack_.size() < floor() + count) refuse_broken("the stack is empty");
    make(Shape::tuple, stack_.size() - count);
  }

  // The memo.

  void put(std::uint64_t place) {
    if (stack_.size() <= floor()) refuse_broken("the stack is empty");
    if (place > opcode_at_) refuse("a memo of " + std::to_string(place) + " places, more than the file has had values");
    if (place >= memo_.size()) {
      spend(kMemoBytes * static_cast<Bytes>(place + 1 - memo_.size()));
      memo_.resize(static_cast<std::size_t>(place) + 1);
      is_known_.resize(memo_.size());
    }
    if (!is_known_[place]) ++known_;
    memo_[place] = stack_.back();
    is_known_[place] = true;
  }
  void get(std::uint64_t place) {
    if (place >= memo_.size() || !is_known_[place]) refuse_broken("a value that the memo does not have");
    push(memo_[place]);
  }

  void spend(Bytes bytes) {
    spent_ += bytes;
    if (spent_ <= allowed_bytes(content_.size())) return;
    refuse("these " + std::to_string(content_.size()) + " bytes would take more than " +
           std::to_string(allowed_bytes(content_.size()) >> 20) + " MiB, which no snapshot does");
  }

  // One opcode; whether it was the last.
  bool step() {
    opcode_at_ = at_;
    const char opcode = take(1).front();
    switch (opcode) {
      case '.':
        pop();
        return true;
      case '\x80':
        if (number(1) > kNewestProtocol) refuse_broken("a protocol that is not known");
        break;
      case '\x95':
        if (number(8) > content_.size() - at_) refuse_cut();
        break;
      case '(':
        spend(kElementBytes);
        marks_.push_back(stack_.size());
        break;
      case '0':
        if (stack_.size() == floor() && !marks_.empty()) {
          pop_mark();
        } else {
          pop();
        }
        break;
      case '1': {
        const std::size_t mark = pop_mark();
        stack_.resize(mark);
        break;
      }
      case '2': {
        const Value value = pop();
        push(value);
        push(value);
        break;
      }
      case 'N':
      case '\x88':
      case '\x89':
        push(Value());
        break;
      case 'I':
      case 'L':
        push_number(line(), kMostBytesOfNumberLine);
        break;
      case 'F':
        push_number(line(), kMostBytesOfNumberLine);
        break;
      case 'J':
        push_number(take(4), kMostBytesOfInteger);
        break;
      case 'K':
        push_number(take(1), kMostBytesOfInteger);
        break;
      case 'M':
        push_number(take(2), kMostBytesOfInteger);
        break;
      case 'G':
        push_number(take(8), kMostBytesOfInteger);
        break;
      case '\x8a':
        push_number(take(number(1)), kMostBytesOfInteger);
        break;
      case '\x8b':
        push_number(take(number(4)), kMostBytesOfInteger);
        break;
      case 'S':
      case 'V':
        push_string(line());
        break;
      case 'U':
      case 'C':
      case '\x8c':
        push_string(take(number(1)));
        break;
      case 'T':
      case 'B':
      case 'X':
        push_string(take(number(4)));
        break;
      case '\x8d':
      case '\x8e':
      case '\x96':
        push_string(take(number(8)));
        break;
      case ']':
        push_container(Shape::list);
        break;
      case '}':
        push_container(Shape::dict);
        break;
      case '\x8f':
        push_container(Shape::set);
        break;
      case ')':
        push_container(Shape::tuple);
        break;
      case 'l':
        make(Shape::list, pop_mark());
        break;
      case 'd':
        make(Shape::dict, pop_mark());
        break;
      case '\x91':
        make(Shape::set, pop_mark());
        break;
      case 't':
        make(Shape::tuple, pop_mark());
        break;
      case '\x85':
        make_of_last(1);
        break;
      case '\x86':
        make_of_last(2);
        break;
      case '\x87':
        make_of_last(3);
        break;
      case 'a':
        fill(top_container(1, Shape::list), stack_.size() - 1);
        break;
      case 's':
        fill(top_container(2, Shape::dict), stack_.size() - 2);
        break;
      case 'e':
        fill_from_mark(Shape::list);
        break;
      case 'u':
        fill_from_mark(Shape::dict);
        break;
      case '\x90':
        fill_from_mark(Shape::set);
        break;
      case 'p':
        put(number_line());
        break;
      case 'q':
        put(number(1));
        break;
      case 'r':
        put(number(4));
        break;
      case '\x94':
        put(known_);
        break;
      case 'g':
        get(number_line());
        break;
      case 'h':
        get(number(1));
        break;
      case 'j':
        get(number(4));
        break;
      case 'c':
      case 'i': {
        const std::string module = shown(line());
        refuse_import("import " + module + "." + shown(line()));
      }
      case '\x93':
        refuse_import("import " + shown(strings_[0]) + "." + shown(strings_[1]));
      case 'R':
      case 'b':
      case 'o':
      case '\x81':
      case '\x92':
      case 'P':
      case 'Q':
      case '\x82':
      case '\x83':
      case '\x84':
      case '\x97':
      case '\x98':
        refuse_import("build an object");
      default:
        refuse_broken("an opcode that is not known");
    }
    return false;
  }

  std::string_view content_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Container> containers_;
  std::vector<Value> memo_;
  std::vector<bool> is_known_;
  std::size_t known_ = 0;        // places of the memo that hold a value: where the next MEMOIZE goes
  std::string_view strings_[2];  // the last two
  std::size_t other_keys_ = 0;
  Bytes spent_ = 0;
};

}  // namespace

void check_plain_pickle(std::string_view content) {
  Scan(content).run();
}

}  // namespace xmem::snapshot
