// xmem._core: aligning the blocks of runs of different size.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "register.hpp"
#include "scaling/alignment.hpp"

namespace xmem::bindings {
namespace py = pybind11;

using Keys = py::array_t<std::int64_t, py::array::c_style>;

namespace {
std::span<const std::int64_t> as_span(const Keys& keys) {
  return {keys.data(), static_cast<std::size_t>(keys.size())};
}
}  // namespace

void register_scaling(py::module_& core) {
  core.def(
      "align",
      [](const Keys& left, const Keys& right, std::size_t max_differences) {
        const std::span<const std::int64_t> left_keys = as_span(left);
        const std::span<const std::int64_t> right_keys = as_span(right);
        std::vector<std::int32_t> counterpart;
        {
          const py::gil_scoped_release release;
          counterpart = scaling::align(left_keys, right_keys, max_differences);
        }
        return py::array_t<std::int32_t>(static_cast<py::ssize_t>(counterpart.size()), counterpart.data());
      },
      py::arg("left"), py::arg("right"), py::arg("max_differences") = scaling::kMaxDifferences);
}

}  // namespace xmem::bindings
