// What each bind_<topic>.cpp offers to module.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace xmem::bindings {

void register_errors(pybind11::module_& core);
void register_simulation(pybind11::module_& core);

}  // namespace xmem::bindings
