// xmem._core: pairing memory events into blocks, and comparing the blocks of two runs.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "blocks/lifetimes.hpp"
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

// The arrays of a run: block, size, begin and end of each row.
struct LifetimeColumns {
  Column<std::int32_t> block;
  Column<std::int64_t> size_bytes, alloc_ns, free_ns;

  explicit LifetimeColumns(const py::tuple& columns)
      : block(columns[0]), size_bytes(columns[1]), alloc_ns(columns[2]), free_ns(columns[3]) {
    if (size_bytes.size() != block.size() || alloc_ns.size() != block.size() || free_ns.size() != block.size())
      throw std::invalid_argument("columns of a run differ in length");
  }
  blocks::Lifetimes view() const { return {span_of(block), span_of(size_bytes), span_of(alloc_ns), span_of(free_ns)}; }
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

  core.def(
      "blocks_changed",
      [](const py::tuple& before, const py::tuple& after) {
        const LifetimeColumns old_columns(before), new_columns(after);
        const blocks::Lifetimes old_lifetimes = old_columns.view(), new_lifetimes = new_columns.view();
        const py::gil_scoped_release release;
        return blocks::blocks_changed(old_lifetimes, new_lifetimes);
      },
      py::arg("before"), py::arg("after"));
}

const blocks::BlockTable& block_table_of(const py::handle& paired) {
  return paired.cast<const PairedBlocks&>().table;
}

}  // namespace xmem::bindings
