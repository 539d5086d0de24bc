// xmem._core: a table of contents. Each topic binds itself in its own file, in data order.
#include <pybind11/pybind11.h>

#include "register.hpp"

PYBIND11_MODULE(_core, core) {
  core.doc() = "The C++ core of xmem: plain functions from columns to columns.";
  xmem::bindings::register_errors(core);
  xmem::bindings::register_trace(core);
  xmem::bindings::register_blocks(core);
  xmem::bindings::register_attribution(core);
  xmem::bindings::register_simulation(core);
  xmem::bindings::register_snapshot(core);
  xmem::bindings::register_scaling(core);
  xmem::bindings::register_nccl(core);
}
