#include "trace/parsing/event_decoder.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/huge_pages.hpp"
#include "trace/parsing/decimal.hpp"
#include "trace/parsing/event_extent.hpp"
#include "trace/parsing/event_splitter.hpp"
#include "trace/parsing/frame_name.hpp"
#include "trace/parsing/repair_text.hpp"

namespace xmem::trace {
namespace od = simdjson::ondemand;

static_assert(EventDecoder::kPadding >= simdjson::SIMDJSON_PADDING);

class EventDecoder::Parser {
 public:
  od::parser events;
  od::parser deferred;  // for `args` that stand before the fields that decide whether they matter
};

// The tokens of an event's fields: raw JSON, strings with their quotes. Empty = absent.
struct EventDecoder::Arguments {
  std::string_view bytes, address, device_type, device_id, total_allocated, total_reserved;
  std::string_view event_index, sequence_number, forward_thread, input_types;
  std::string_view input_dims, input_strides, concrete_inputs;  // of some operators alone

  std::string_view* nested(std::string_view key) {
    return key == "Input Dims"        ? &input_dims
           : key == "Input Strides"   ? &input_strides
           : key == "Concrete Inputs" ? &concrete_inputs
                                      : nullptr;
  }
};

struct EventDecoder::Mark {
  std::size_t spans, memory;
  std::vector<SkippedKind> skipped;
  Diagnostics diagnostics;
  std::int64_t event_count;
};

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::string_view trim(std::string_view token) {
  while (!token.empty() && is_space(token.back())) token.remove_suffix(1);
  return token;
}

bool is_string(std::string_view token) {
  return token.size() >= 2 && token.front() == '"';
}

// The text between the quotes, escapes left as they are: enough to compare with the profiler's own words.
std::string_view inner(std::string_view token) {
  return is_string(token) ? token.substr(1, token.size() - 2) : std::string_view{};
}

// Some writers quote process and thread numbers; 7 and "7" are one thread.
std::string_view unquoted(std::string_view token) {
  return is_string(token) ? inner(token) : token;
}

enum class Keep : std::uint8_t { undecided, skip, memory, span };

struct Decision {
  Keep keep = Keep::undecided;
  SpanKind kind = SpanKind::operation;
};

bool is_old_annotation(std::string_view name) {
  return name.starts_with("ProfilerStep#") || name.starts_with("Optimizer.") ||
         name.starts_with("enumerate(DataLoader)");
}

Decision decide_span(std::string_view category, std::string_view name, UserFrames& user_frames) {
  if (category == "cpu_op") return {Keep::span, SpanKind::operation};
  if (category == "python_function") {
    if (name.starts_with("nn.Module: ")) return {Keep::span, SpanKind::module_frame};
    return user_frames.contains(name) ? Decision{Keep::span, SpanKind::user_frame} : Decision{Keep::skip};
  }
  if (category == "user_annotation") return {Keep::span, SpanKind::annotation};
  if (category == "Operator") {
    return {Keep::span, is_old_annotation(name) ? SpanKind::annotation : SpanKind::operation};
  }
  if (category == "xmem_module") return {Keep::span, SpanKind::module};
  if (category == "xmem_line") return {Keep::span, SpanKind::line};
  if (category == "xmem_host") return {Keep::span, SpanKind::host};
  if (category == "xmem_iteration") return {Keep::span, SpanKind::iteration};
  return {Keep::skip};
}

bool needs_inputs(std::string_view name, const OperatorNames& with_inputs) {
  return std::ranges::find(with_inputs, inner(name)) != with_inputs.end();
}

// An integer of fewer than 64 bits; `missing` where it does not fit.
template <class Integer>
Integer parse_or(std::string_view token, Integer missing) {
  const auto value = parse_integer(token);
  return value && std::in_range<Integer>(*value) ? static_cast<Integer>(*value) : missing;
}

Decision decide(std::string_view phase, std::string_view category, std::string_view name, UserFrames& user_frames) {
  if (phase == "\"X\"") return decide_span(inner(category), inner(name), user_frames);
  if (phase == "\"i\"" && inner(name) == "[memory]") return {Keep::memory};
  return {Keep::skip};
}

}  // namespace

struct EventDecoder::Fields {
  std::string_view phase, category, name, process, thread, time, duration;
  Arguments args;
  Decision decision;  // as soon as the first three fields are known, at the latest at the end of the event
};

const OperatorNames EventDecoder::kNone{};

EventDecoder::EventDecoder(TraceFragment& fragment, const OperatorNames& with_inputs)
    : fragment_(fragment), with_inputs_(with_inputs), parser_(std::make_unique<Parser>()) {}
EventDecoder::~EventDecoder() = default;

namespace {

// Reads the members of `args` that some kind of row needs.
template <class Arguments>
simdjson::error_code read_arguments(od::object object, Arguments& args, bool with_inputs) {
  for (auto member : object) {
    od::field field;
    if (const auto error = std::move(member).get(field)) return error;
    const std::string_view key = field.escaped_key();
    std::string_view* slot = nullptr;
    switch (key.size()) {
      case 4:
        slot = key == "Addr" ? &args.address : nullptr;
        break;
      case 5:
        slot = key == "Bytes" ? &args.bytes : nullptr;
        break;
      case 6:
        slot = key == "Ev Idx" ? &args.event_index : nullptr;
        break;
      case 9:
        slot = key == "Device Id" ? &args.device_id : nullptr;
        break;
      case 10:
        slot = key == "Input type" ? &args.input_types : nullptr;
        break;
      case 11:
        slot = key == "Device Type" ? &args.device_type : nullptr;
        break;
      case 13:
        slot = key == "Fwd thread id" ? &args.forward_thread : nullptr;
        break;
      case 14:
        slot = key == "Total Reserved" ? &args.total_reserved : nullptr;
        break;
      case 15:
        slot = key == "Sequence number"   ? &args.sequence_number
               : key == "Total Allocated" ? &args.total_allocated
                                          : nullptr;
        break;
      default:
        break;
    }
    bool is_nested = slot == &args.input_types;
    if (slot == nullptr && with_inputs) {
      slot = args.nested(key);
      is_nested = true;
    }
    if (slot == nullptr || !slot->empty()) continue;
    if (is_nested) {
      if (const auto error = field.value().raw_json().get(*slot)) return error;
      *slot = trim(*slot);
    } else {
      *slot = trim(field.value().raw_json_token());
    }
  }
  return simdjson::SUCCESS;
}

// Reads one event; stops early where the first fields already say that it is not kept.
template <class Fields>
simdjson::error_code read_fields(od::object object, Fields& fields, od::parser& deferred_parser,
                                 UserFrames& user_frames, const OperatorNames& with_inputs) {
  Decision& decision = fields.decision;
  std::string_view deferred_args;
  for (auto member : object) {
    od::field field;
    if (const auto error = std::move(member).get(field)) return error;
    const std::string_view key = field.escaped_key();
    std::string_view* slot = nullptr;
    switch (key.size()) {
      case 2:
        slot = key == "ph" ? &fields.phase : key == "ts" ? &fields.time : nullptr;
        break;
      case 3:
        slot = key == "cat"   ? &fields.category
               : key == "pid" ? &fields.process
               : key == "tid" ? &fields.thread
               : key == "dur" ? &fields.duration
                              : nullptr;
        break;
      case 4:
        if (key == "args") {
          if (decision.keep == Keep::undecided) {
            if (const auto error = field.value().raw_json().get(deferred_args)) return error;
          } else if (od::object args; field.value().get_object().get(args) == simdjson::SUCCESS) {
            if (const auto error = read_arguments(args, fields.args, needs_inputs(fields.name, with_inputs)))
              return error;
          }
          continue;
        }
        slot = key == "name" ? &fields.name : nullptr;
        break;
      default:
        break;
    }
    if (slot == nullptr || !slot->empty()) continue;
    *slot = trim(field.value().raw_json_token());
    if (decision.keep == Keep::undecided && !fields.phase.empty() && !fields.category.empty() && !fields.name.empty()) {
      decision = decide(fields.phase, fields.category, fields.name, user_frames);
      if (decision.keep == Keep::skip) return simdjson::SUCCESS;
    }
  }
  if (decision.keep == Keep::undecided) decision = decide(fields.phase, fields.category, fields.name, user_frames);
  if (!deferred_args.empty() && decision.keep != Keep::skip) {
    const simdjson::padded_string padded(deferred_args);
    od::document document;
    od::object args;
    // Tokens must outlive the parser's buffer, so they are mapped back onto the original text; those of a second "args"
    // lie there already.
    Fields copy = fields;
    if (const auto error = deferred_parser.iterate(padded).get(document)) return error;
    if (document.get_object().get(args) != simdjson::SUCCESS) return simdjson::SUCCESS;
    if (const auto error = read_arguments(args, copy.args, needs_inputs(fields.name, with_inputs))) return error;
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(padded.data());
    for (std::string_view* token : {&copy.args.bytes, &copy.args.address, &copy.args.device_type, &copy.args.device_id,
                                    &copy.args.total_allocated, &copy.args.total_reserved, &copy.args.event_index,
                                    &copy.args.sequence_number, &copy.args.forward_thread, &copy.args.input_types,
                                    &copy.args.input_dims, &copy.args.input_strides, &copy.args.concrete_inputs}) {
      const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(token->data()) - first;
      if (!token->empty() && at < padded.size()) *token = deferred_args.substr(at, token->size());
    }
    fields = copy;
  }
  return simdjson::SUCCESS;
}

// Where the next event begins: the '{' that lies in no string and no other element, such as [{}]. A string or an array
// without an end is damage, in which any '{' may begin an event.
std::size_t next_event(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char byte = text[at];
    if (in_string && byte == '\\') ++at;
    if (byte == '"') in_string = !in_string;
    if (in_string) continue;
    if (byte == '{' && depth == 0) return at;
    if (byte == '[') ++depth;
    if (byte == ']' && depth-- == 0) return text.size();  // of the event array
  }
  return in_string || depth > 0 ? std::min(text.find('{'), text.size()) : text.size();
}

}  // namespace

std::size_t EventDecoder::decode_window(const Window& window) {
  const bool is_empty = std::ranges::all_of(std::string_view(window.begin, window.length), is_space);
  const std::size_t taken = is_empty ? window.length : decode_events(window.begin, window.length, window.offset);
  fragment_.extents.push_back(fragment_.extent(window.number));
  return taken;
}

std::size_t EventDecoder::decode_events(char* begin, std::size_t length, std::int64_t offset) {
  // The window becomes an array document in place.
  char* const open = begin - 1;
  char* const close = begin + length;
  const char before = *open;
  const char after = *close;
  *open = '[';
  *close = ']';
  const Mark start = mark();

  const auto decode = [&]() -> simdjson::error_code {
    od::document document;
    od::array array;
    if (const auto error =
            parser_->events.iterate(open, length + 2, length + 2 + simdjson::SIMDJSON_PADDING).get(document)) {
      return error;
    }
    if (const auto error = document.get_array().get(array)) return error;
    for (auto element : array) {
      od::value value;
      if (const auto error = std::move(element).get(value)) return error;
      const auto place = offset + (value.raw_json_token().data() - begin);
      od::object object;
      const auto type_error = value.get_object().get(object);
      if (type_error) return type_error;  // also of a number or string, which the slow path counts
      Fields fields;
      if (const auto error = read_fields(object, fields, parser_->deferred, user_frames_, with_inputs_)) return error;
      keep(fields, place);
    }
    return simdjson::SUCCESS;
  };

  const auto error = decode();
  *open = before;
  *close = after;
  if (!error) return length;
  roll_back(start);
  return decode_one_by_one(std::string_view(begin, length), offset);
}

// The slow path for a window that holds something bad.
std::size_t EventDecoder::decode_one_by_one(std::string_view window, std::int64_t offset) {
  std::size_t taken = 0;
  for (;;) {
    const std::size_t at = taken + next_event(window.substr(taken));
    const std::string_view between = window.substr(taken, at - taken);
    const std::size_t array_end = EventSplitter().scan(between).array_end;
    count_other_elements(between.substr(0, array_end), offset + static_cast<std::int64_t>(taken));
    if (array_end != EventSplitter::kNone) return taken + array_end;
    if (at == window.size()) return at;
    const EventExtent extent = event_extent(window.substr(at));
    const std::string_view event = window.substr(at, extent.length);
    const auto place = offset + static_cast<std::int64_t>(at);
    if (extent.end != EventEnd::closed || !decode_or_repair(event, place)) count_malformed(place);
    taken = at + event.size();
  }
}

bool EventDecoder::decode_or_repair(std::string_view event, std::int64_t offset) {
  if (decode_text(event, offset, false)) return true;
  const std::string repaired = repair_text(event);
  return repaired != event && decode_text(repaired, offset, true);
}

// What stands between events, such as the numbers in [{}, 1, 2, {}]; nothing but commas as a rule.
void EventDecoder::count_other_elements(std::string_view between, std::int64_t offset) {
  constexpr std::string_view kSeparators = ", \t\r\n";
  const std::size_t first = between.find_first_not_of(kSeparators);
  if (first == std::string_view::npos) return;
  const std::size_t last = between.find_last_not_of(kSeparators);
  offset += static_cast<std::int64_t>(first);
  const Mark start = mark();
  std::string text("[");
  text.append(between, first, last - first + 1).push_back(']');
  const simdjson::padded_string array(text);
  od::document document;
  od::array elements;
  bool is_json = !parser_->events.iterate(array).get(document) && !document.get_array().get(elements);
  if (is_json) {
    for (auto element : elements) {
      std::string_view token;
      is_json = !element.raw_json().get(token);
      if (!is_json) break;
      fragment_.diagnostics.add(Problem::bad_event, offset + (token.data() - array.data() - 1));
      ++fragment_.event_count;
    }
  }
  if (is_json) return;
  roll_back(start);
  count_malformed(offset);
}

void EventDecoder::count_malformed(std::int64_t offset) {
  fragment_.diagnostics.add(Problem::malformed_event, offset);
  ++fragment_.event_count;
}

bool EventDecoder::decode_text(std::string_view event, std::int64_t offset, bool repaired) {
  const simdjson::padded_string padded(event);
  od::document document;
  od::object object;
  Fields fields;
  if (parser_->events.iterate(padded).get(document) || document.get_object().get(object)) return false;
  if (read_fields(object, fields, parser_->deferred, user_frames_, with_inputs_)) return false;
  if (repaired) fragment_.diagnostics.add(Problem::repaired_text, offset);
  keep(fields, offset);
  return true;
}

void EventDecoder::keep(const Fields& fields, std::int64_t offset) {
  ++fragment_.event_count;
  if (fields.decision.keep == Keep::memory) {
    keep_memory(fields, offset);
  } else if (fields.decision.keep == Keep::span) {
    keep_span(fields, fields.decision.kind, offset);
  } else {
    count_skipped(fields);
  }
}

void EventDecoder::keep_span(const Fields& fields, SpanKind kind, std::int64_t offset) {
  const auto begin = parse_microseconds_as_ns(fields.time);
  if (!begin || !is_string(fields.name)) {
    fragment_.diagnostics.add(Problem::bad_event, offset);
    return;
  }
  std::int64_t duration = parse_microseconds_as_ns(fields.duration).value_or(-1);
  if (duration < 0 || *begin > std::numeric_limits<std::int64_t>::max() - duration) {
    fragment_.diagnostics.add(Problem::bad_duration, offset);
    duration = 0;
  }
  SpanRow row;
  row.kind = kind;
  row.name = intern_name(fields.name);
  row.thread = thread_of(fields);
  row.span = {*begin, *begin + duration};
  row.sequence_number = parse_integer(fields.args.sequence_number).value_or(-1);
  row.forward_thread = parse_integer(fields.args.forward_thread).value_or(-1);
  if (!fields.args.input_types.empty()) row.input_types = fragment_.names.intern(fields.args.input_types);
  if (needs_inputs(fields.name, with_inputs_)) row.inputs = intern_inputs(fields.args);
  fragment_.events.append(row);
  grow_on_huge_pages(fragment_.span_index);
  fragment_.span_index.push_back(parse_integer(fields.args.event_index).value_or(-1));
}

void EventDecoder::keep_memory(const Fields& fields, std::int64_t offset) {
  const auto time = parse_microseconds_as_ns(fields.time);
  const auto bytes = parse_integer(fields.args.bytes);
  if (!time || !bytes || *bytes > kMaxBlockBytes || *bytes < -kMaxBlockBytes) {
    fragment_.diagnostics.add(Problem::bad_event, offset);
    return;
  }
  MemoryRow row;
  row.time_ns = *time;
  row.bytes = *bytes;
  row.address = parse_address(fields.args.address).value_or(-1);
  row.device_type = parse_or<std::int8_t>(fields.args.device_type, 0);
  row.device_index = parse_or<std::int32_t>(fields.args.device_id, -1);
  row.thread = thread_of(fields);
  row.total_allocated = parse_integer(fields.args.total_allocated).value_or(-1);
  row.total_reserved = parse_integer(fields.args.total_reserved).value_or(-1);
  fragment_.memory.append(row);
  grow_on_huge_pages(fragment_.memory_index);
  fragment_.memory_index.push_back(parse_integer(fields.args.event_index).value_or(-1));
}

// Skipped events come in long runs of one kind: the last one is compared before anything is hashed.
void EventDecoder::count_skipped(const Fields& fields) {
  const std::string_view label = fields.category.empty() ? inner(fields.phase) : inner(fields.category);
  if (last_skipped_ >= fragment_.skipped.size() ||
      fragment_.names[fragment_.skipped[last_skipped_].category] != label) {
    const NameId category = fragment_.names.intern(label);
    auto known = std::ranges::find(fragment_.skipped, category, &SkippedKind::category);
    if (known == fragment_.skipped.end()) known = fragment_.skipped.insert(known, SkippedKind{category, 0});
    last_skipped_ = static_cast<std::size_t>(known - fragment_.skipped.begin());
  }
  ++fragment_.skipped[last_skipped_].count;
}

// Nearly all events of a run share one thread: its raw tokens are compared before anything is hashed.
std::int32_t EventDecoder::thread_of(const Fields& fields) {
  if (last_thread_index_ >= 0 && fields.process == last_process_token_ && fields.thread == last_thread_token_) {
    return last_thread_index_;
  }
  last_process_token_ = fields.process;
  last_thread_token_ = fields.thread;
  scratch_.assign(unquoted(fields.process)).append(1, '\0').append(unquoted(fields.thread));
  last_thread_index_ = fragment_.threads.intern(scratch_).value;
  return last_thread_index_;
}

NameId EventDecoder::intern_name(std::string_view token) {
  const std::string_view text = inner(token);
  if (text.find('\\') == std::string_view::npos) return fragment_.names.intern(text);
  scratch_.assign(token).append(kPadding, ' ');
  od::document document;
  std::string_view unescaped;
  if (parser_->deferred.iterate(scratch_.data(), token.size(), scratch_.size()).get(document) == simdjson::SUCCESS &&
      document.get_string(true).get(unescaped) == simdjson::SUCCESS) {
    return fragment_.names.intern(unescaped);
  }
  return fragment_.names.intern(text);
}

NameId EventDecoder::intern_inputs(const Arguments& args) {
  if (args.input_dims.empty() && args.input_strides.empty() && args.concrete_inputs.empty()) return NameId{};
  const auto or_null = [](std::string_view token) { return token.empty() ? std::string_view("null") : token; };
  scratch_.assign("[").append(or_null(args.input_dims)).append(",").append(or_null(args.input_strides));
  scratch_.append(",").append(or_null(args.concrete_inputs)).append("]");
  return fragment_.names.intern(scratch_);
}

EventDecoder::Mark EventDecoder::mark() const {
  return {fragment_.events.size(), fragment_.memory.size(), fragment_.skipped, fragment_.diagnostics,
          fragment_.event_count};
}

void EventDecoder::roll_back(const Mark& mark) {
  fragment_.events.truncate(mark.spans);
  fragment_.memory.truncate(mark.memory);
  fragment_.span_index.resize(mark.spans);
  fragment_.memory_index.resize(mark.memory);
  fragment_.skipped = mark.skipped;
  fragment_.diagnostics = mark.diagnostics;
  fragment_.event_count = mark.event_count;
}

}  // namespace xmem::trace
