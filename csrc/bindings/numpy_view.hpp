// A column of the core as a read-only NumPy array that keeps its owner alive. Nothing is copied.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <span>

namespace xmem::bindings {

template <class T>
pybind11::array numpy_view(std::span<const T> column, pybind11::handle owner) {
  pybind11::array_t<T> view(static_cast<pybind11::ssize_t>(column.size()), column.data(), owner);
  view.attr("setflags")(pybind11::arg("write") = false);
  return view;
}

}  // namespace xmem::bindings
