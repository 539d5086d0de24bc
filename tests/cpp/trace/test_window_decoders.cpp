// One trace for any number of threads, whoever decodes which window.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "testing.hpp"
#include "trace/parsing/event_decoder.hpp"
#include "trace/parsing/event_splitter.hpp"
#include "trace/read_trace.hpp"
#include "trace/trace_fragment.hpp"

using xmem::NameId;
using xmem::trace::EventDecoder;
using xmem::trace::EventSplitter;
using xmem::trace::Trace;
using xmem::trace::TraceFragment;
using xmem::trace::TraceReader;

namespace {

using Random = std::mt19937;

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<unsigned>(limit));
}

// Events of all kinds, with names, categories and threads that first appear at any place, and some that are broken.
std::string random_events(int count, bool indexed) {
  Random random(7);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto number = [&](int limit) { return std::to_string(below(random, limit)); };
    const std::string index = indexed ? R"(, "Ev Idx": )" + std::to_string(i) : "";
    const std::string thread = R"("pid": 1, "tid": )" + number(3 + i / 500) + R"(, "ts": )" + number(1000);
    if (i != 0) text += ",\n";
    switch (below(random, 8)) {
      case 0:
        text += R"({"ph": "i", "name": "[memory]", )" + thread + R"(, "args": {"Bytes": 64, "Addr": )" + number(99) +
                index + "}}";
        break;
      case 1:
        text += R"({"ph": "X", "cat": "kind )" + number(2 + i / 300) + R"(", "name": "skipped", )" + thread + "}";
        break;
      case 2:
        text += below(random, 40) != 0 ? R"({"ph": "M", "name": "process_name"})" : R"({"ph": "X" "cat": 1})";
        break;
      default:
        text += R"({"ph": "X", "cat": "cpu_op", "name": "aten::op)" + number(5 + i / 50) + R"(", "dur": )" + number(9) +
                ", " + thread + R"(, "args": {"Input type": ["t)" + number(4) + R"("])" + index + "}}";
    }
  }
  return text;
}

std::vector<std::string> texts(const xmem::StringTable& table) {
  std::vector<std::string> all;
  for (std::size_t id = 0; id < table.size(); ++id) all.emplace_back(table[NameId{static_cast<std::int32_t>(id)}]);
  return all;
}

void check_same(Trace& a, Trace& b) {
  CHECK(a.events.columns() == b.events.columns());
  CHECK(a.memory.columns() == b.memory.columns());
  CHECK(texts(a.names) == texts(b.names));
  CHECK_EQUAL(a.event_count, b.event_count);
  CHECK_EQUAL(a.skipped.size(), b.skipped.size());
  for (std::size_t i = 0; i < a.skipped.size(); ++i) {
    CHECK(a.skipped[i].category == b.skipped[i].category);
    CHECK_EQUAL(a.skipped[i].count, b.skipped[i].count);
  }
  const auto& problems_of_a = a.diagnostics.all();
  const auto& problems_of_b = b.diagnostics.all();
  CHECK_EQUAL(problems_of_a.size(), problems_of_b.size());
  for (std::size_t i = 0; i < problems_of_a.size(); ++i) {
    CHECK(problems_of_a[i].problem == problems_of_b[i].problem);
    CHECK_EQUAL(problems_of_a[i].count, problems_of_b[i].count);
    CHECK_EQUAL(problems_of_a[i].first_offset, problems_of_b[i].first_offset);
  }
}

Trace read(const std::string& text, std::size_t threads) {
  TraceReader reader(threads);
  reader.feed(text);
  return reader.finish();
}

// Deals windows of about 700 bytes to decoders at random, and each decoder its windows in the order of the file.
Trace decode_in_fragments(const std::string& events, std::size_t decoders) {
  std::string text = "," + events + std::string(EventDecoder::kPadding, ' ');
  std::vector<TraceFragment> fragments(decoders);
  std::vector<std::unique_ptr<EventDecoder>> lanes;
  for (TraceFragment& fragment : fragments) lanes.push_back(std::make_unique<EventDecoder>(fragment));
  Random random(11);
  EventSplitter splitter;
  std::size_t begin = 1;
  std::int64_t number = 0;
  constexpr std::size_t kPiece = 700;
  for (std::size_t at = 1; at <= events.size(); at += kPiece) {
    const auto cut = splitter.scan(std::string_view(text).substr(at, std::min(kPiece, events.size() + 1 - at)));
    if (cut.last_event_end == EventSplitter::kNone) continue;
    const std::size_t end = at + cut.last_event_end;
    if (text[begin] == ',') ++begin;
    lanes[random() % decoders]->decode_window(
        {text.data() + begin, end - begin, static_cast<std::int64_t>(begin), number++});
    begin = end;
  }
  return assemble_trace(std::move(fragments));
}

}  // namespace

TEST(fragments_of_any_number_of_decoders_make_the_same_trace) {
  for (const bool indexed : {false, true}) {
    const std::string events = random_events(4000, indexed);
    Trace whole = read("[" + events + "]", 1);
    CHECK(whole.events.size() > 2000);
    CHECK(whole.diagnostics.all().size() == 1);
    for (const std::size_t decoders : {1U, 2U, 3U, 7U}) {
      Trace joined = decode_in_fragments(events, decoders);
      check_same(joined, whole);
    }
  }
}

TEST(any_number_of_threads_reads_the_same_trace) {
  const std::string text = "[" + random_events(120'000, true) + "]";
  CHECK(text.size() > std::size_t{12} << 20);  // long enough for threads to be started
  Trace alone = read(text, 1);
  for (const std::size_t threads : {2U, 3U, 8U}) {
    Trace together = read(text, threads);
    check_same(together, alone);
  }
}

TEST(a_trace_that_is_cut_off_is_counted_on_every_thread) {
  const std::string text = "[" + random_events(80'000, false);
  for (const std::size_t threads : {1U, 4U}) {
    try {
      read(text, threads);
      CHECK(false);
    } catch (const xmem::TraceError& error) {
      CHECK_EQUAL(error.event_index(), 80'000);
    }
  }
}

TEST(a_reader_may_be_given_up_while_its_threads_work) {
  const std::string text = "[" + random_events(80'000, false);
  for (int i = 0; i < 20; ++i) {
    TraceReader reader(3);
    reader.feed(text);
  }
}
