// What each bind_<topic>.cpp offers to module.cpp and to its neighbours.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/string_table.hpp"
#include "blocks/block_table.hpp"
#include "trace/diagnostics.hpp"

namespace xmem::bindings {

void register_errors(pybind11::module_& core);
void register_trace(pybind11::module_& core);
void register_blocks(pybind11::module_& core);
void register_attribution(pybind11::module_& core);
void register_simulation(pybind11::module_& core);
void register_snapshot(pybind11::module_& core);
void register_scaling(pybind11::module_& core);
void register_nccl(pybind11::module_& core);

// (name, count, first byte offset, severity, explanation) of each problem.
pybind11::list diagnostics_list(const trace::Diagnostics& diagnostics);

// Every text of the table, by id.
std::vector<std::string> texts(const StringTable& table);

const blocks::BlockTable& block_table_of(const pybind11::handle& paired_blocks);

}  // namespace xmem::bindings
