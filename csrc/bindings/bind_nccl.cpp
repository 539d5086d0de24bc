// xmem._core: the device memory that NCCL takes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <string>

#include "nccl/nccl_buffers.hpp"
#include "register.hpp"

namespace xmem::bindings {
namespace py = pybind11;

void register_nccl(py::module_& core) {
  // What one communicator has connected: whether it did collectives along rings and trees, its peers on the same
  // server, and whether it sent to others.
  core.def(
      "nccl_bytes",
      [](int capability, const std::string& name, std::array<std::uint64_t, 3> settings, int ranks, int here, bool ring,
         bool tree, std::uint64_t near_peers, bool far_peers) {
        const nccl::NcclCard card = nccl::nccl_card(capability, name);
        const nccl::NcclSettings set{settings[0], settings[1], settings[2]};
        const auto bytes = [&](nccl::NcclPart part) { return nccl::nccl_bytes(card, set, {ranks, here}, part); };
        std::uint64_t total = bytes(nccl::NcclPart::table) + near_peers * bytes(nccl::NcclPart::near_peer);
        if (ring) total += bytes(nccl::NcclPart::ring);
        if (tree) total += bytes(nccl::NcclPart::tree) + bytes(nccl::NcclPart::multicast);
        if (far_peers) total += bytes(nccl::NcclPart::far_peers);
        return total;
      },
      py::arg("capability"), py::arg("name"), py::arg("settings"), py::arg("ranks"), py::arg("here"), py::arg("ring"),
      py::arg("tree"), py::arg("near_peers"), py::arg("far_peers"));
}

}  // namespace xmem::bindings
