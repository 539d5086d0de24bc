// xmem._core: reading a trace.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "numpy_view.hpp"
#include "register.hpp"
#include "trace/read_trace.hpp"

namespace xmem::bindings {
namespace py = pybind11;
using trace::EventTable;
using trace::MemoryTable;
using trace::Trace;

namespace {

py::dict counts_by_kind(const Trace& trace) {
  std::array<std::int64_t, trace::kSpanKinds> spans{};
  for (const trace::SpanKind kind : trace.events.kind) ++spans[static_cast<std::size_t>(kind)];
  py::dict counts;
  for (std::size_t kind = 0; kind < trace::kSpanKinds; ++kind) {
    if (spans[kind] != 0) counts[py::str(trace::kSpanKindNames[kind])] = spans[kind];
  }
  if (trace.memory.size() != 0) counts["memory"] = trace.memory.size();
  for (const trace::SkippedKind& skipped : trace.skipped) {
    const py::str key(std::string(trace.names[skipped.category]));
    counts[key] = counts.contains(key) ? counts[key].cast<std::int64_t>() + skipped.count : skipped.count;
  }
  return counts;
}

// Progress of a long read: Python's signal handlers run, so that Ctrl-C stops at once, then the caller's function.
trace::Progress progress_with_signals(const py::object& callback) {
  return [callback](std::int64_t bytes_read) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!callback.is_none()) callback(bytes_read);
    return true;
  };
}

}  // namespace

std::vector<std::string> texts(const StringTable& table) {
  std::vector<std::string> all;
  all.reserve(table.size());
  for (std::size_t id = 0; id < table.size(); ++id) all.emplace_back(table[NameId{static_cast<std::int32_t>(id)}]);
  return all;
}

py::list diagnostics_list(const trace::Diagnostics& diagnostics) {
  py::list found;
  for (const trace::Diagnostic& diagnostic : diagnostics.all()) {
    const trace::ProblemInfo& info = trace::info_of(diagnostic.problem);
    found.append(py::make_tuple(std::string(info.name), diagnostic.count, diagnostic.first_offset,
                                info.severity == trace::Severity::info ? "info" : "data_loss",
                                std::string(info.explanation)));
  }
  return found;
}

void register_trace(py::module_& core) {
  // A column of a table that lives inside the Trace: the array keeps the Trace alive.
  const auto span_column = [](auto member) {
    return [member](const py::object& self) { return numpy_view(self.cast<const Trace&>().events.*member, self); };
  };
  const auto memory_column = [](auto member) {
    return [member](const py::object& self) { return numpy_view(self.cast<const Trace&>().memory.*member, self); };
  };

  py::class_<Trace>(core, "Trace")
      .def_property_readonly("span_kind", span_column(&EventTable::kind))
      .def_property_readonly("span_name", span_column(&EventTable::name))
      .def_property_readonly("span_thread", span_column(&EventTable::thread))
      .def_property_readonly("span_begin_ns", span_column(&EventTable::begin_ns))
      .def_property_readonly("span_end_ns", span_column(&EventTable::end_ns))
      .def_property_readonly("span_sequence_number", span_column(&EventTable::sequence_number))
      .def_property_readonly("span_forward_thread", span_column(&EventTable::forward_thread))
      .def_property_readonly("span_input_types", span_column(&EventTable::input_types))
      .def_property_readonly("span_inputs", span_column(&EventTable::inputs))
      .def_property_readonly("memory_time_ns", memory_column(&MemoryTable::time_ns))
      .def_property_readonly("memory_address", memory_column(&MemoryTable::address))
      .def_property_readonly("memory_bytes", memory_column(&MemoryTable::bytes))
      .def_property_readonly("memory_device_type", memory_column(&MemoryTable::device_type))
      .def_property_readonly("memory_device_index", memory_column(&MemoryTable::device_index))
      .def_property_readonly("memory_thread", memory_column(&MemoryTable::thread))
      .def_property_readonly("memory_total_allocated", memory_column(&MemoryTable::total_allocated))
      .def_property_readonly("memory_total_reserved", memory_column(&MemoryTable::total_reserved))
      .def_property_readonly("name_count", [](const Trace& trace) { return trace.names.size(); })
      .def("name",
           [](const Trace& trace, std::int32_t id) {
             if (id < 0 || static_cast<std::size_t>(id) >= trace.names.size()) throw py::index_error("unknown name id");
             return std::string(trace.names[NameId{id}]);
           })
      .def_property_readonly("names", [](const Trace& trace) { return texts(trace.names); })
      .def_property_readonly("counts", &counts_by_kind)
      .def_property_readonly("diagnostics", [](const Trace& trace) { return diagnostics_list(trace.diagnostics); })
      .def_property_readonly(
          "process_of_thread",
          [](const py::object& self) { return numpy_view(self.cast<const Trace&>().process_of_thread, self); })
      .def_property_readonly("distributed", [](const Trace& trace) { return py::bytes(trace.distributed); })
      .def_property_readonly("metadata", [](const Trace& trace) { return py::bytes(trace.metadata); })
      .def_readonly("bytes", &Trace::bytes)
      .def_readonly("event_count", &Trace::event_count);

  py::class_<trace::TraceReader>(core, "TraceReader")
      .def(py::init([](trace::OperatorNames with_inputs) {
             return std::make_unique<trace::TraceReader>(1, std::move(with_inputs));
           }),
           py::arg("with_inputs"))
      .def(
          "feed",
          [](trace::TraceReader& reader, const py::buffer& bytes) {
            const py::buffer_info info = bytes.request();
            const std::string_view view(static_cast<const char*>(info.ptr),
                                        static_cast<std::size_t>(info.size * info.itemsize));
            const py::gil_scoped_release release;
            reader.feed(view);
          },
          py::arg("bytes"))
      .def("finish", &trace::TraceReader::finish, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("bytes_read", &trace::TraceReader::bytes_read);

  core.def(
      "read_trace_file",
      [](const std::string& path, const trace::OperatorNames& with_inputs, const py::object& progress,
         std::size_t threads) {
        const trace::Progress with_signals = progress_with_signals(progress);
        const py::gil_scoped_release release;
        return trace::read_trace_file(path, with_signals, threads, with_inputs);
      },
      py::arg("path"), py::arg("with_inputs"), py::arg("progress") = py::none(), py::arg("threads") = 1);
}

}  // namespace xmem::bindings
