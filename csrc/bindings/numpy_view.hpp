// A column of the core as a read-only NumPy array that keeps its owner alive, and NumPy's arrays as columns. Nothing is
// copied, but for an array of another type or with gaps.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <span>
#include <type_traits>
#include <vector>

#include "base/ids.hpp"

namespace xmem::bindings {

// The plain integer behind a column's element: enumerations and ids are shown as their values.
template <class T>
struct PlainElement {
  using type = T;
};
template <class T>
  requires std::is_enum_v<T>
struct PlainElement<T> {
  using type = std::underlying_type_t<T>;
};
template <class Tag>
struct PlainElement<Id<Tag>> {
  using type = std::int32_t;
};

template <class T>
pybind11::array numpy_view(std::span<const T> column, const pybind11::handle& owner) {
  using Plain = typename PlainElement<T>::type;
  static_assert(sizeof(Plain) == sizeof(T));
  pybind11::array_t<Plain> view(static_cast<pybind11::ssize_t>(column.size()),
                                reinterpret_cast<const Plain*>(column.data()), owner);
  view.attr("setflags")(pybind11::arg("write") = false);
  return view;
}

template <class T>
pybind11::array numpy_view(const std::vector<T>& column, const pybind11::handle& owner) {
  return numpy_view(std::span<const T>(column), owner);
}

template <class T>
using Column = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

template <class T>
std::span<const T> span_of(const Column<T>& column) {
  return {column.data(), static_cast<std::size_t>(column.size())};
}

}  // namespace xmem::bindings
