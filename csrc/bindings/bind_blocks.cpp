// xmem._core: pairing memory events into blocks.
#include <pybind11/pybind11.h>

#include "blocks/pairing.hpp"
#include "numpy_view.hpp"
#include "register.hpp"
#include "trace/trace.hpp"

namespace xmem::bindings {
namespace py = pybind11;
using blocks::BlockTable;

namespace {
struct PairedBlocks {
  BlockTable table;
  trace::Diagnostics diagnostics;
};
}  // namespace

void register_blocks(py::module_& core) {
  const auto column = [](auto member) {
    return
        [member](const py::object& self) { return numpy_view(self.cast<const PairedBlocks&>().table.*member, self); };
  };
  py::class_<PairedBlocks>(core, "PairedBlocks")
      .def_property_readonly("address", column(&BlockTable::address))
      .def_property_readonly("size_bytes", column(&BlockTable::size_bytes))
      .def_property_readonly("alloc_ns", column(&BlockTable::alloc_ns))
      .def_property_readonly("free_ns", column(&BlockTable::free_ns))
      .def_property_readonly("device_type", column(&BlockTable::device_type))
      .def_property_readonly("device_index", column(&BlockTable::device_index))
      .def_property_readonly("thread", column(&BlockTable::thread))
      .def_property_readonly("alloc_event", column(&BlockTable::alloc_event))
      .def_property_readonly("free_event", column(&BlockTable::free_event))
      .def_property_readonly("flags", column(&BlockTable::flags))
      .def_property_readonly("diagnostics",
                             [](const PairedBlocks& paired) { return diagnostics_list(paired.diagnostics); });

  core.def(
      "pair_blocks",
      [](const trace::Trace& trace) {
        PairedBlocks paired;
        paired.table = blocks::pair_blocks(trace.memory, paired.diagnostics);
        return paired;
      },
      py::arg("trace"), py::call_guard<py::gil_scoped_release>());
}

const blocks::BlockTable& block_table_of(const py::handle& paired) {
  return paired.cast<const PairedBlocks&>().table;
}

}  // namespace xmem::bindings
