// xmem._core: who allocated each block, and when in the training step.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "attribution/attribute.hpp"
#include "attribution/operator_tree.hpp"
#include "numpy_view.hpp"
#include "register.hpp"

namespace xmem::bindings {
namespace py = pybind11;
using attribution::Attribution;

void register_attribution(py::module_& core) {
  const auto column = [](auto member) {
    return [member](const py::object& self) { return numpy_view(self.cast<const Attribution&>().*member, self); };
  };
  py::class_<Attribution>(core, "Attribution")
      .def_property_readonly("operator", column(&Attribution::operation))
      .def_property_readonly("root_operator", column(&Attribution::root_operation))
      .def_property_readonly("forward_link", column(&Attribution::forward_link))
      .def_property_readonly("phase", column(&Attribution::phase))
      .def_property_readonly("free_phase", column(&Attribution::free_phase))
      .def_property_readonly("iteration", column(&Attribution::iteration))
      .def_property_readonly("free_iteration", column(&Attribution::free_iteration))
      .def_property_readonly("module", column(&Attribution::module))
      .def_property_readonly("source_line", column(&Attribution::source_line))
      .def_property_readonly("host", column(&Attribution::host))
      .def_property_readonly("category", column(&Attribution::category))
      .def_property_readonly("tensor", column(&Attribution::tensor))
      .def_property_readonly("modules", [](const Attribution& a) { return texts(a.modules); })
      .def_property_readonly("lines", [](const Attribution& a) { return texts(a.lines); })
      .def_readonly("optimizer_steps", &Attribution::optimizer_steps);

  core.def(
      "attribute",
      [](const trace::Trace& trace, const py::object& paired_blocks, const Column<std::uint8_t>& category,
         const Column<std::int64_t>& address, const Column<std::int64_t>& time_ns, bool on_gpu) {
        if (category.size() != address.size() || category.size() != time_ns.size()) {
          throw py::value_error("the columns of named tensors differ in length");
        }
        const blocks::BlockTable& blocks = block_table_of(paired_blocks);
        const std::span<const std::uint8_t> codes = span_of(category);
        const attribution::NamedTensors tensors{
            {reinterpret_cast<const attribution::Category*>(codes.data()), codes.size()},
            span_of(address),
            span_of(time_ns),
            on_gpu};
        const py::gil_scoped_release release;
        return attribution::attribute(trace, blocks, tensors);
      },
      py::arg("trace"), py::arg("blocks"), py::arg("tensor_category"), py::arg("tensor_address"),
      py::arg("tensor_time_ns"), py::arg("tensors_on_gpu"));

  core.def(
      "operator_parents",
      [](const trace::Trace& trace) {
        std::vector<std::int32_t> parents;
        {
          const py::gil_scoped_release release;
          parents = attribution::operator_parents(trace.events);
        }
        return py::array_t<std::int32_t>(static_cast<py::ssize_t>(parents.size()), parents.data());
      },
      py::arg("trace"));

  core.def(
      "nearest_wanted",
      [](const Column<std::int32_t>& parents, const Column<bool>& wanted, const Column<std::int32_t>& rows) {
        const std::span<const std::int32_t> of = span_of(parents), from = span_of(rows);
        const std::span<const bool> which = span_of(wanted);
        if (of.size() != which.size()) throw std::invalid_argument("parents and wanted differ in length");
        const auto is_row = [size = static_cast<std::int64_t>(of.size())](std::int32_t row) { return row < size; };
        if (!std::ranges::all_of(from, is_row)) throw std::invalid_argument("a row lies beyond the last operator");
        std::vector<std::int32_t> nearest;
        {
          const py::gil_scoped_release release;
          nearest = attribution::nearest_wanted(of, which, from);
        }
        return py::array_t<std::int32_t>(static_cast<py::ssize_t>(nearest.size()), nearest.data());
      },
      py::arg("parents"), py::arg("wanted"), py::arg("rows"));

  core.def(
      "rows_by_name",
      [](const trace::Trace& trace, int kind) {
        if (kind < 0 || kind >= static_cast<int>(trace::kSpanKinds))
          throw std::invalid_argument("no such kind of span");
        attribution::RowsByName found;
        {
          const py::gil_scoped_release release;
          found = attribution::rows_by_name(trace.events, static_cast<trace::SpanKind>(kind), trace.names.size());
        }
        const auto array = [](const std::vector<std::int32_t>& column) {
          return py::array_t<std::int32_t>(static_cast<py::ssize_t>(column.size()), column.data());
        };
        return py::make_tuple(array(found.rows), array(found.counts));
      },
      py::arg("trace"), py::arg("kind"));
}

}  // namespace xmem::bindings
