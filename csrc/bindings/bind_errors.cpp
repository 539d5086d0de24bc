// Exceptions of the core become those of xmem.errors, with their fields.
#include <pybind11/pybind11.h>

#include "base/error.hpp"
#include "register.hpp"

namespace xmem::bindings {
namespace py = pybind11;

namespace {
void set_python_error(const char* class_name, const py::tuple& arguments) {
  const py::object type = py::module_::import("xmem.errors").attr(class_name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}
}  // namespace

void register_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const TraceError& error) {
      set_python_error("TraceError",
                       py::make_tuple(error.what(), py::none(), error.byte_offset(), error.event_index()));
    } catch (const ConfigError& error) {
      set_python_error("ConfigError", py::make_tuple(error.message(), error.hint()));
    }
  });
}

}  // namespace xmem::bindings
