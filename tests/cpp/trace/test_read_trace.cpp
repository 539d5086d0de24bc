#include <string>

#include "base/error.hpp"
#include "testing.hpp"
#include "trace/read_trace.hpp"

using xmem::TraceError;
using xmem::trace::Problem;
using xmem::trace::SpanKind;
using xmem::trace::Trace;
using xmem::trace::TraceReader;

namespace {

Trace read_in_pieces(const std::string& text, std::size_t piece) {
  TraceReader reader;
  for (std::size_t at = 0; at < text.size(); at += piece) reader.feed(std::string_view(text).substr(at, piece));
  return reader.finish();
}

Trace read(const std::string& text) {
  return read_in_pieces(text, text.size());
}

std::string name_of(const Trace& trace, std::size_t row) {
  return std::string(trace.names[trace.events.name[row]]);
}

const std::string kOperator =
    R"({"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2,
        "args": {"Sequence number": 7, "Input type": ["float", ""], "Ev Idx": 0}})";
const std::string kMemory =
    R"({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "ts": 11,
        "args": {"Bytes": 512, "Addr": 4096, "Device Type": 0, "Device Id": -1}})";

void check_error(const std::string& text, std::string_view says, std::int64_t offset) {
  try {
    read(text);
    CHECK(false);
  } catch (const TraceError& error) {
    CHECK(std::string_view(error.what()).find(says) != std::string_view::npos);
    CHECK_EQUAL(error.byte_offset(), offset);
  }
}

}  // namespace

TEST(a_trace_reads_the_same_in_pieces_of_any_size) {
  const std::string text = R"({"schemaVersion": 1, "odd \" key": {"a": ["]", "}"]}, "xmem": {"format": 1},
    "traceEvents": [)" + kOperator +
                           ", " + kMemory + R"( ], "traceName": "t"})";
  for (std::size_t piece = 1; piece <= text.size(); piece += piece < 70 ? 1 : 29) {
    const Trace trace = read_in_pieces(text, piece);
    CHECK_EQUAL(trace.events.size(), 1U);
    CHECK_EQUAL(name_of(trace, 0), "aten::add");
    CHECK_EQUAL(trace.events.begin_ns[0], 10'500);
    CHECK_EQUAL(trace.events.end_ns[0], 12'500);
    CHECK_EQUAL(trace.events.sequence_number[0], 7);
    CHECK_EQUAL(trace.names[trace.events.input_types[0]], R"(["float", ""])");
    CHECK_EQUAL(trace.memory.address[0], 4096);
    CHECK_EQUAL(trace.metadata, R"({"format": 1})");
    CHECK_EQUAL(trace.bytes, static_cast<std::int64_t>(text.size()));
  }
}

TEST(arguments_may_stand_before_the_fields_that_say_what_the_event_is) {
  const Trace trace =
      read(R"([{"args": {"Bytes": -64, "Addr": 16}, "ts": 1, "name": "[memory]", "ph": "i", "tid": 1, "pid": 1}])");
  CHECK_EQUAL(trace.memory.bytes[0], -64);
  CHECK_EQUAL(trace.memory.address[0], 16);
}

TEST(arguments_that_stand_twice_are_those_of_either_place) {
  const Trace trace = read(R"([{"args": {"Bytes": 64}, "ph": "i", "cat": "cpu_instant_event", "name": "[memory]",
      "ts": 1, "tid": 1, "pid": 1, "args": {"Bytes": 128, "Addr": 4096}}])");
  CHECK_EQUAL(trace.memory.size(), 1U);
  CHECK_EQUAL(trace.memory.bytes[0], 128);
  CHECK_EQUAL(trace.memory.address[0], 4096);
}

TEST(a_bad_event_costs_only_itself) {
  const std::string bad = R"({"ph": "X", "cat": "cpu_op", "name": nonsense here, "ts": 1})";
  const Trace trace = read("[" + kOperator + "," + bad + "," + kMemory + "]");
  CHECK_EQUAL(trace.events.size(), 1U);
  CHECK_EQUAL(trace.memory.size(), 1U);
  const auto& problems = trace.diagnostics.all();
  CHECK_EQUAL(problems.size(), 1U);
  CHECK_EQUAL(problems[0].count, 1);
  CHECK_EQUAL(problems[0].first_offset, static_cast<std::int64_t>(kOperator.size() + 2));
}

TEST(control_characters_and_bytes_that_are_not_utf8_are_repaired_and_counted) {
  std::string raw = kOperator;
  raw.replace(raw.find("aten::add"), 9,
              "a\x01\xFF"
              "b");
  const Trace trace = read("[" + raw + "," + kMemory + "]");
  CHECK_EQUAL(name_of(trace, 0),
              "a \xEF\xBF\xBD"
              "b");
  CHECK(trace.diagnostics.all()[0].problem == Problem::repaired_text);
}

TEST(escapes_in_names_are_resolved) {
  std::string escaped = kOperator;
  escaped.replace(escaped.find("aten::add"), 9, R"(\u0061\"\n\\)");
  CHECK_EQUAL(name_of(read("[" + escaped + "]"), 0), "a\"\n\\");
}

TEST(events_are_sorted_by_thread_and_begin_longest_first) {
  const auto span = [](int tid, int ts, int dur) {
    return R"({"ph":"X","cat":"cpu_op","name":"n)" + std::to_string(dur) + R"(","pid":1,"tid":)" + std::to_string(tid) +
           R"(,"ts":)" + std::to_string(ts) + R"(,"dur":)" + std::to_string(dur) + "}";
  };
  const Trace trace = read("[" + span(5, 9, 1) + "," + span(4, 2, 3) + "," + span(5, 3, 1) + "," + span(5, 3, 8) + "]");
  CHECK_EQUAL(trace.events.begin_ns[0], 3'000);  // thread 5 appeared first
  CHECK_EQUAL(name_of(trace, 0), "n8");
  CHECK_EQUAL(name_of(trace, 1), "n1");
  CHECK_EQUAL(trace.events.thread[3], 1);
}

TEST(errors_say_where) {
  check_error("", "empty", 0);
  check_error("hello", "not the JSON", 0);
  check_error("  \"text\"", "not the JSON", 2);
  check_error(R"({"a": 1})", "traceEvents", -1);
  const std::string cut = R"({"traceEvents": [)" + kOperator.substr(0, 40);
  check_error(cut, "ends in the middle", static_cast<std::int64_t>(cut.size()));
  const std::string unclosed = R"({"traceEvents": [)" + kOperator;
  check_error(unclosed, "ends in the middle", static_cast<std::int64_t>(unclosed.size()));
}

TEST(elements_that_are_no_events_are_counted) {
  const Trace trace = read(R"([1, "two", [3], null, )" + kMemory + "]");
  CHECK_EQUAL(trace.memory.size(), 1U);
  CHECK_EQUAL(trace.event_count, 5);
  CHECK_EQUAL(trace.diagnostics.all()[0].count, 4);
}

TEST(what_stands_between_events_is_judged_alike_in_pieces_of_any_size) {
  const std::string zeros(3, '\0');
  for (const std::string& between :
       {zeros, std::string("null"), std::string("\x01 7"), std::string("[{}, [\"]{\"]]"), std::string("\"{\"")}) {
    const std::string text = "[" + kOperator + "," + between + "," + kMemory + "]";
    const auto expected = read(text).diagnostics.all();
    CHECK_EQUAL(expected.size(), 1U);
    for (std::size_t piece = 1; piece <= text.size(); piece += piece < 70 ? 1 : 29) {
      const Trace trace = read_in_pieces(text, piece);
      CHECK_EQUAL(trace.events.size(), 1U);
      CHECK_EQUAL(trace.memory.size(), 1U);
      const auto& problems = trace.diagnostics.all();
      CHECK_EQUAL(problems.size(), 1U);
      CHECK(problems[0].problem == expected[0].problem);
      CHECK_EQUAL(problems[0].count, expected[0].count);
      CHECK_EQUAL(problems[0].first_offset, expected[0].first_offset);
    }
  }
}

TEST(spaces_between_events_do_not_fill_memory) {
  TraceReader reader;
  reader.feed("[" + kOperator);
  const std::string spaces(std::size_t{1} << 22, ' ');
  for (int i = 0; i < 100; ++i) reader.feed(i == 50 ? " ,\n" : spaces);  // more than one event may be long
  reader.feed(kMemory + "]");
  const Trace trace = reader.finish();
  CHECK_EQUAL(trace.event_count, 2);
  CHECK(trace.diagnostics.all().empty());
}

TEST(damage_that_hides_the_end_of_an_event_costs_only_that_event) {
  const std::string lost_quote = R"({"ph": "X", "cat": "cpu_op", "name": "aten::add, "ts": 1})";
  const std::string lost_brace = R"({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1)";
  const std::string extra_brace = R"({"ph": "X", "cat": {"cpu_op", "name": "aten::add", "ts": 1})";
  for (const std::string& damaged : {lost_quote, lost_brace, extra_brace}) {
    const std::string text = R"({"traceEvents": [)" + kOperator + ",\n " + damaged + ",\n " + kMemory + ", " +
                             kOperator + R"(], "traceName": "t"})";
    for (const std::size_t piece : {std::size_t{1}, std::size_t{50}, text.size()}) {
      const Trace trace = read_in_pieces(text, piece);
      CHECK_EQUAL(trace.events.size(), 2U);
      CHECK_EQUAL(trace.memory.size(), 1U);
      CHECK_EQUAL(trace.event_count, 4);
      const auto& problems = trace.diagnostics.all();
      CHECK_EQUAL(problems.size(), 1U);
      CHECK(problems[0].problem == Problem::malformed_event);
      CHECK_EQUAL(problems[0].first_offset, static_cast<std::int64_t>(text.find(damaged)));
    }
  }
}

TEST(numbers_that_do_not_fit_their_column_are_missing_and_sizes_of_no_device_are_bad) {
  const auto memory = [](const std::string& bytes, const std::string& rest) {
    return R"({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {"Bytes": )" + bytes + rest + "}}";
  };
  const Trace trace = read("[" + memory("8", R"(, "Device Type": 257, "Device Id": 4294967296)") + "," +
                           memory("18446744073709551615", "") + "," + memory("-9223372036854775808", "") + "," +
                           memory("17592186044417", "") + "]");
  CHECK_EQUAL(trace.memory.size(), 1U);
  CHECK_EQUAL(static_cast<int>(trace.memory.device_type[0]), 0);
  CHECK_EQUAL(trace.memory.device_index[0], -1);
  CHECK_EQUAL(trace.diagnostics.all()[0].count, 3);
}

TEST(a_byte_order_mark_may_arrive_in_pieces) {
  const std::string text = "\xEF\xBB\xBF[" + kMemory + "]";
  for (std::size_t piece = 1; piece < 5; ++piece) CHECK_EQUAL(read_in_pieces(text, piece).memory.size(), 1U);
}
