// Memory snapshots, before they are read.
#include <pybind11/pybind11.h>

#include "register.hpp"
#include "snapshot/plain_pickle.hpp"

namespace xmem::bindings {
namespace py = pybind11;

void register_snapshot(py::module_& core) {
  core.def(
      "check_plain_pickle",
      [](const py::bytes& content) {
        const std::string_view text(content);
        const py::gil_scoped_release released;
        snapshot::check_plain_pickle(text);
      },
      py::arg("content"));
}

}  // namespace xmem::bindings
