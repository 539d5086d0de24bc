#include "trace/event_decoder.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "trace/decimal.hpp"
#include "trace/event_splitter.hpp"
#include "trace/frame_name.hpp"
#include "trace/repair_text.hpp"

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

EventDecoder::EventDecoder(TraceFragment& fragment) : fragment_(fragment), parser_(std::make_unique<Parser>()) {}
EventDecoder::~EventDecoder() = default;

namespace {

// Reads the members of `args` that some kind of row needs.
template <class Arguments>
simdjson::error_code read_arguments(od::object object, Arguments& args) {
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
    if (slot == nullptr || !slot->empty()) continue;
    if (slot == &args.input_types) {
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
                                 UserFrames& user_frames) {
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
            if (const auto error = read_arguments(args, fields.args)) return error;
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
    // Tokens must outlive the parser's buffer, so they are mapped back onto the original text.
    Fields copy = fields;
    if (const auto error = deferred_parser.iterate(padded).get(document)) return error;
    if (document.get_object().get(args) != simdjson::SUCCESS) return simdjson::SUCCESS;
    if (const auto error = read_arguments(args, copy.args)) return error;
    for (std::string_view* token : {&copy.args.bytes, &copy.args.address, &copy.args.device_type, &copy.args.device_id,
                                    &copy.args.total_allocated, &copy.args.total_reserved, &copy.args.event_index,
                                    &copy.args.sequence_number, &copy.args.forward_thread, &copy.args.input_types}) {
      if (!token->empty())
        *token = deferred_args.substr(static_cast<std::size_t>(token->data() - padded.data()), token->size());
    }
    fields = copy;
  }
  return simdjson::SUCCESS;
}

}  // namespace

void EventDecoder::decode_window(const Window& window) {
  if (!std::ranges::all_of(std::string_view(window.begin, window.length), is_space)) {
    decode_events(window.begin, window.length, window.offset);
  }
  fragment_.extents.push_back(fragment_.extent(window.number));
}

void EventDecoder::decode_events(char* begin, std::size_t length, std::int64_t offset) {
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
      if (type_error == simdjson::INCORRECT_TYPE) {
        fragment_.diagnostics.add(Problem::bad_event, place);
        ++fragment_.event_count;
        continue;
      }
      if (type_error) return type_error;
      Fields fields;
      if (const auto error = read_fields(object, fields, parser_->deferred, user_frames_)) return error;
      keep(fields, place);
    }
    return simdjson::SUCCESS;
  };

  const auto error = decode();
  *open = before;
  *close = after;
  if (error) {
    roll_back(start);
    decode_one_by_one(std::string_view(begin, length), offset);
  }
}

namespace {

// Where the event that begins the text ends; the whole text where it does not.
std::size_t event_length(std::string_view text) {
  constexpr std::size_t kPiece = 4096;  // a window may hold thousands of events: do not scan it whole for each
  EventSplitter splitter;
  for (std::size_t at = 0; at < text.size(); at += kPiece) {
    const auto cut = splitter.scan(text.substr(at, kPiece));
    if (cut.first_event_end != EventSplitter::kNone) return at + cut.first_event_end;
  }
  return text.size();
}

}  // namespace

// The slow path for a window that holds something bad.
void EventDecoder::decode_one_by_one(std::string_view window, std::int64_t offset) {
  std::size_t at = 0;
  while ((at = window.find('{', at)) != std::string_view::npos) {
    const std::string_view event = window.substr(at, event_length(window.substr(at)));
    const auto place = offset + static_cast<std::int64_t>(at);
    if (!decode_text(event, place, false)) {
      const std::string repaired = repair_text(event);
      if (repaired == event || !decode_text(repaired, place, true)) {
        fragment_.diagnostics.add(Problem::malformed_event, place);
        ++fragment_.event_count;
      }
    }
    at += event.size();
  }
}

bool EventDecoder::decode_text(std::string_view event, std::int64_t offset, bool repaired) {
  const simdjson::padded_string padded(event);
  od::document document;
  od::object object;
  Fields fields;
  if (parser_->events.iterate(padded).get(document) || document.get_object().get(object)) return false;
  if (read_fields(object, fields, parser_->deferred, user_frames_)) return false;
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
  std::int64_t end = 0;
  if (duration < 0 || __builtin_add_overflow(*begin, duration, &end)) {
    fragment_.diagnostics.add(Problem::bad_duration, offset);
    end = *begin;
  }
  SpanRow row;
  row.kind = kind;
  row.name = intern_name(fields.name);
  row.thread = thread_of(fields);
  row.span = {*begin, end};
  row.sequence_number = parse_integer(fields.args.sequence_number).value_or(-1);
  row.forward_thread = parse_integer(fields.args.forward_thread).value_or(-1);
  if (!fields.args.input_types.empty()) row.input_types = fragment_.names.intern(fields.args.input_types);
  fragment_.events.append(row);
  fragment_.span_index.push_back(parse_integer(fields.args.event_index).value_or(-1));
}

void EventDecoder::keep_memory(const Fields& fields, std::int64_t offset) {
  const auto time = parse_microseconds_as_ns(fields.time);
  const auto bytes = parse_integer(fields.args.bytes);
  if (!time || !bytes) {
    fragment_.diagnostics.add(Problem::bad_event, offset);
    return;
  }
  MemoryRow row;
  row.time_ns = *time;
  row.bytes = *bytes;
  row.address = parse_integer(fields.args.address).value_or(-1);
  row.device_type = static_cast<std::int8_t>(parse_integer(fields.args.device_type).value_or(0));
  row.device_index = static_cast<std::int32_t>(parse_integer(fields.args.device_id).value_or(-1));
  row.thread = thread_of(fields);
  row.total_allocated = parse_integer(fields.args.total_allocated).value_or(-1);
  row.total_reserved = parse_integer(fields.args.total_reserved).value_or(-1);
  fragment_.memory.append(row);
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
