// Request sequences and replays: columns in, columns out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <numeric>
#include <tuple>
#include <type_traits>

#include "allocators/counters.hpp"
#include "allocators/options.hpp"
#include "numpy_view.hpp"
#include "register.hpp"
#include "sequence/request_sequence.hpp"
#include "simulation/gauge_replay.hpp"
#include "simulation/recording.hpp"
#include "simulation/recording_start.hpp"
#include "simulation/replay.hpp"

namespace xmem::bindings {
namespace py = pybind11;

namespace {

// simulation::Alternatives: list of each block, begin of each list, sizes.
using AlternativeColumns = std::tuple<Column<std::int32_t>, Column<std::int64_t>, Column<Bytes>>;

simulation::Alternatives alternatives_of(const AlternativeColumns& columns) {
  const auto& [list, begin, size_bytes] = columns;
  return {span_of(list), span_of(begin), span_of(size_bytes)};
}

// simulation::Requests: mempool and restores of each block.
using PoolColumns = std::tuple<Column<std::int32_t>, Column<std::int32_t>>;

// sequence::Calls: time, kind and number of each call.
using CallColumns = std::tuple<Column<Nanoseconds>, Column<std::uint8_t>, Column<std::int32_t>>;

// A column that the object behind `self` owns.
template <class Owner, class T, class Find>
auto column_of(Find find) {
  return [find](const py::object& self) {
    const std::vector<T>& column = find(self.cast<const Owner&>());
    return numpy_view(std::span<const T>(column), self);
  };
}

// An enum column is a column of its numbers.
template <class Enum>
py::array numbers_of(const std::vector<Enum>& column, py::handle owner) {
  static_assert(sizeof(Enum) == 1);
  return numpy_view(std::span<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(column.data()), column.size()),
                    owner);
}

// The counters under the keys of torch.cuda.memory_stats().
py::dict statistics_dict(const allocators::Statistics& statistics) {
  std::vector<std::int64_t> row;
  allocators::append_counters(statistics, row);
  py::dict out;
  std::size_t column = 0;
  for (const std::string& name : allocators::counter_names()) out[py::str(name)] = row[column++];
  return out;
}

// A gauge of a pool under keys such as all.peak, as in torch.cuda.memory_stats().
py::dict gauge_dict(const allocators::PooledStat& gauge) {
  py::dict out;
  const auto add = [&](const std::string& scope, const allocators::Stat& stat) {
    out[py::str(scope + ".current")] = stat.current;
    out[py::str(scope + ".peak")] = stat.peak;
    out[py::str(scope + ".allocated")] = stat.allocated;
    out[py::str(scope + ".freed")] = stat.freed();
  };
  add("all", gauge.all);
  add("small_pool", gauge.of_pool[0]);
  add("large_pool", gauge.of_pool[1]);
  return out;
}

py::tuple peak_tuple(const simulation::Peak& peak) {
  return py::make_tuple(peak.bytes, peak.request);
}

py::tuple peaks_tuple(const simulation::Peaks& peaks) {
  return py::make_tuple(peak_tuple(peaks.allocated), peak_tuple(peaks.active), peak_tuple(peaks.reserved),
                        peak_tuple(peaks.requested));
}

allocators::AllocatorOptions options_of(const py::kwargs& given) {
  allocators::AllocatorOptions options;
  std::size_t known = 0;
  allocators::for_each_option(options, [&](const char* name, auto& field) {
    if (!given.contains(name)) return;
    ++known;
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_enum_v<Field>) {
      field = static_cast<Field>(given[name].cast<std::underlying_type_t<Field>>());
    } else {
      field = given[name].cast<Field>();
    }
  });
  if (known != given.size()) throw py::type_error("AllocatorOptions: unknown setting");
  return options;
}

void bind_options(py::module_& core) {
  py::class_<allocators::AllocatorOptions>(core, "AllocatorOptions").def(py::init(&options_of));
}

void bind_sequence(py::module_& core) {
  using sequence::RequestSequence;
  py::class_<RequestSequence>(core, "RequestSequence")
      .def_property_readonly(
          "kind", [](const py::object& self) { return numbers_of(self.cast<const RequestSequence&>().kind, self); })
      .def_property_readonly(
          "block", column_of<RequestSequence, std::int32_t>([](const auto& s) -> const auto& { return s.block; }))
      .def_property_readonly(
          "time_ns", column_of<RequestSequence, Nanoseconds>([](const auto& s) -> const auto& { return s.time_ns; }));

  core.def(
      "make_request_sequence",
      [](const Column<Nanoseconds>& alloc_ns, const Column<Nanoseconds>& free_ns, const Column<Bytes>& size_bytes,
         const Column<std::uint8_t>& waits, const CallColumns& calls) {
        const sequence::Lifetimes lifetimes{span_of(alloc_ns), span_of(free_ns), span_of(size_bytes), span_of(waits)};
        const auto& [time_ns, kind, number] = calls;
        const sequence::Calls called{span_of(time_ns), span_of(kind), span_of(number)};
        const py::gil_scoped_release released;
        return sequence::make_request_sequence(lifetimes, called);
      },
      py::arg("alloc_ns"), py::arg("free_ns"), py::arg("size_bytes"), py::arg("waits"), py::arg("calls"));
}

template <class T, class Find>
void add_replay_column(py::class_<simulation::Replay>& cls, const char* name, Find find) {
  cls.def_property_readonly(name, column_of<simulation::Replay, T>(find));
}

void bind_replay(py::module_& core) {
  using simulation::Replay;
  py::class_<Replay> cls(core, "Replay");
  add_replay_column<Bytes>(cls, "allocated_bytes", [](const auto& r) -> const auto& { return r.timeline.allocated; });
  add_replay_column<Bytes>(cls, "active_bytes", [](const auto& r) -> const auto& { return r.timeline.active; });
  add_replay_column<Bytes>(cls, "reserved_bytes", [](const auto& r) -> const auto& { return r.timeline.reserved; });
  add_replay_column<Bytes>(cls, "requested_bytes", [](const auto& r) -> const auto& { return r.timeline.requested; });
  add_replay_column<std::int64_t>(cls, "counters", [](const auto& r) -> const auto& { return r.counters; });
  add_replay_column<Bytes>(cls, "placed_address", [](const auto& r) -> const auto& { return r.placement.address; });
  add_replay_column<std::int32_t>(cls, "placed_segment",
                                  [](const auto& r) -> const auto& { return r.placement.segment; });
  add_replay_column<Bytes>(cls, "placed_size", [](const auto& r) -> const auto& { return r.placement.size; });
  add_replay_column<Bytes>(cls, "event_address", [](const auto& r) -> const auto& { return r.events.address; });
  add_replay_column<Bytes>(cls, "event_size", [](const auto& r) -> const auto& { return r.events.size; });
  add_replay_column<std::int64_t>(cls, "event_stream", [](const auto& r) -> const auto& { return r.events.stream; });
  add_replay_column<std::int32_t>(cls, "event_mempool", [](const auto& r) -> const auto& { return r.events.mempool; });
  add_replay_column<std::int64_t>(cls, "event_request", [](const auto& r) -> const auto& { return r.event_request; });
  cls.def_property_readonly("event_action", [](const py::object& self) {
    return numbers_of(self.cast<const Replay&>().events.action, self);
  });
  add_replay_column<std::int32_t>(cls, "block_request_block",
                                  [](const auto& r) -> const auto& { return r.state_block; });
  add_replay_column<std::int32_t>(cls, "segment_mempool",
                                  [](const auto& r) -> const auto& { return r.segment_mempool; });
  cls.def_readonly("state", &Replay::state);
  cls.def_property_readonly("statistics", [](const Replay& r) { return statistics_dict(r.statistics); });
  cls.def_property_readonly("reserved_by_private_pools", [](const Replay& r) {
    py::dict out;
    for (const auto& [mempool, gauge] : r.reserved_by_private_pools) out[py::int_(mempool)] = gauge_dict(gauge);
    return out;
  });
  cls.def_property_readonly("peaks", [](const Replay& r) { return peaks_tuple(r.peaks); });
  cls.def_property_readonly("failures", [](const Replay& r) {
    py::list failures;
    for (const simulation::FailedRequest& f : r.failures) {
      failures.append(py::make_tuple(f.request, f.requested_bytes, f.rounded_bytes, f.device_free_bytes));
    }
    return failures;
  });

  core.def("counter_names", &allocators::counter_names);
  core.def(
      "replay",
      [](const Column<std::uint8_t>& kind, const Column<std::int32_t>& block, const Column<Bytes>& size_bytes,
         const Column<std::int64_t>& stream, const AlternativeColumns& alternatives, const PoolColumns& pools,
         const allocators::AllocatorOptions& options, std::optional<Bytes> capacity_bytes, Bytes other_bytes,
         bool descending_addresses, bool drop_failed, std::optional<std::int64_t> until, bool every_counter) {
        const auto& [mempool, restores] = pools;
        const simulation::Requests requests{
            span_of(kind),    span_of(block),   span_of(size_bytes), span_of(stream), alternatives_of(alternatives),
            span_of(mempool), span_of(restores)};
        simulation::ReplayOptions replay_options;
        replay_options.allocator = options;
        replay_options.device.capacity = capacity_bytes.value_or(allocators::kUnlimitedBytes);
        replay_options.device.other_bytes = other_bytes;
        if (descending_addresses) replay_options.device.order = allocators::AddressOrder::kDescending;
        replay_options.on_out_of_memory =
            drop_failed ? simulation::OnOutOfMemory::kDrop : simulation::OnOutOfMemory::kStop;
        replay_options.until = until;
        replay_options.every_counter = every_counter;
        const py::gil_scoped_release released;
        return simulation::replay(requests, replay_options);
      },
      py::arg("kind"), py::arg("block"), py::arg("size_bytes"), py::arg("stream"), py::arg("alternatives"),
      py::arg("pools"), py::arg("options"), py::arg("capacity_bytes"), py::arg("other_bytes"),
      py::arg("descending_addresses"), py::arg("drop_failed"), py::arg("until"), py::arg("every_counter"));
}

void bind_gauge_replay(py::module_& core) {
  using simulation::GaugeReplay;
  py::class_<GaugeReplay> cls(core, "GaugeReplay");
  const auto add = [&](const char* name, std::vector<Bytes> simulation::Timeline::* gauge) {
    cls.def_property_readonly(
        name, column_of<GaugeReplay, Bytes>([gauge](const auto& r) -> const auto& { return r.timeline.*gauge; }));
  };
  add("allocated_bytes", &simulation::Timeline::allocated);
  add("active_bytes", &simulation::Timeline::active);
  add("reserved_bytes", &simulation::Timeline::reserved);
  add("requested_bytes", &simulation::Timeline::requested);
  cls.def_property_readonly("peaks", [](const GaugeReplay& r) { return peaks_tuple(r.peaks); });
  cls.def_readonly("out_of_memory", &GaugeReplay::out_of_memory);

  core.def(
      "replay_gauges",
      [](const Column<std::uint8_t>& kind, const Column<std::int32_t>& block, const Column<Bytes>& size_bytes,
         const Column<std::int64_t>& stream, const AlternativeColumns& alternatives, const PoolColumns& pools,
         std::uint8_t allocator, const allocators::AllocatorOptions& options, std::optional<Bytes> capacity_bytes,
         Bytes other_bytes, bool keep_timeline) {
        const auto& [mempool, restores] = pools;
        const simulation::Requests requests{
            span_of(kind),    span_of(block),   span_of(size_bytes), span_of(stream), alternatives_of(alternatives),
            span_of(mempool), span_of(restores)};
        allocators::DeviceProperties device;
        device.capacity = capacity_bytes.value_or(allocators::kUnlimitedBytes);
        device.other_bytes = other_bytes;
        const py::gil_scoped_release released;
        return simulation::replay_gauges(requests, static_cast<simulation::AllocatorKind>(allocator), options, device,
                                         keep_timeline);
      },
      py::arg("kind"), py::arg("block"), py::arg("size_bytes"), py::arg("stream"), py::arg("alternatives"),
      py::arg("pools"), py::arg("allocator"), py::arg("options"), py::arg("capacity_bytes"), py::arg("other_bytes"),
      py::arg("keep_timeline"));
}

void bind_state(py::module_& core) {
  using allocators::AllocatorState;
  py::class_<AllocatorState> cls(core, "AllocatorState");
  const auto add = [&]<class T>(const char* name, std::vector<T> AllocatorState::* column) {
    cls.def_property_readonly(
        name, column_of<AllocatorState, T>([column](const auto& s) -> const auto& { return s.*column; }));
  };
  add("segment_address", &AllocatorState::segment_address);
  add("segment_size", &AllocatorState::segment_size);
  add("segment_stream", &AllocatorState::segment_stream);
  add("segment_pool", &AllocatorState::segment_pool);
  add("segment_expandable", &AllocatorState::segment_expandable);
  add("segment_mempool", &AllocatorState::segment_mempool);
  add("segment_id", &AllocatorState::segment_id);
  add("block_segment", &AllocatorState::block_segment);
  add("block_address", &AllocatorState::block_address);
  add("block_size", &AllocatorState::block_size);
  add("block_requested", &AllocatorState::block_requested);
  add("block_state", &AllocatorState::block_state);
}

// The columns of AllocatorState that a snapshot has; the others number what the snapshot does not name.
allocators::AllocatorState make_state(const Column<Bytes>& segment_address, const Column<Bytes>& segment_size,
                                      const Column<std::int64_t>& segment_stream,
                                      const Column<std::uint8_t>& segment_pool,
                                      const Column<std::uint8_t>& segment_expandable,
                                      const Column<std::int32_t>& segment_mempool,
                                      const Column<std::int32_t>& block_segment, const Column<Bytes>& block_address,
                                      const Column<Bytes>& block_size, const Column<Bytes>& block_requested,
                                      const Column<std::uint8_t>& block_state) {
  const auto copy = [](const auto& column) { return std::vector(column.data(), column.data() + column.size()); };
  allocators::AllocatorState state;
  state.segment_address = copy(segment_address);
  state.segment_size = copy(segment_size);
  state.segment_stream = copy(segment_stream);
  state.segment_pool = copy(segment_pool);
  state.segment_expandable = copy(segment_expandable);
  state.segment_mempool = copy(segment_mempool);
  state.segment_id.resize(state.segment_address.size());
  std::iota(state.segment_id.begin(), state.segment_id.end(), 0);
  state.block_segment = copy(block_segment);
  state.block_address = copy(block_address);
  state.block_size = copy(block_size);
  state.block_requested = copy(block_requested);
  state.block_state = copy(block_state);
  state.block_handle.assign(state.block_address.size(), -1);
  allocators::check_state(state);
  return state;
}

void bind_recording(py::module_& core) {
  using simulation::Recording;
  using simulation::RecordingReplay;
  const auto recording_of = [](const Column<std::uint8_t>& action, const Column<Bytes>& address,
                               const Column<Bytes>& size, const Column<std::int64_t>& stream,
                               const Column<std::int32_t>& mempool) {
    return Recording{span_of(action), span_of(address), span_of(size), span_of(stream), span_of(mempool)};
  };
  py::class_<RecordingReplay>(core, "RecordingReplay")
      .def_property_readonly("reserved_bytes",
                             column_of<RecordingReplay, Bytes>([](const auto& r) -> const auto& { return r.reserved; }))
      .def_property_readonly("allocated_bytes", column_of<RecordingReplay, Bytes>(
                                                    [](const auto& r) -> const auto& { return r.allocated; }))
      .def_property_readonly("statistics", [](const RecordingReplay& r) { return statistics_dict(r.statistics); })
      .def_readonly("state", &RecordingReplay::state)
      .def_property_readonly("difference", [](const RecordingReplay& r) -> py::object {
        if (!r.difference) return py::none();
        return py::make_tuple(r.difference->event, static_cast<int>(r.difference->action), r.difference->address,
                              r.difference->size, r.difference->stream);
      });
  core.def("make_allocator_state", &make_state);
  core.def(
      "replay_recording",
      [recording_of](const Column<std::uint8_t>& action, const Column<Bytes>& address, const Column<Bytes>& size,
                     const Column<std::int64_t>& stream, const Column<std::int32_t>& mempool,
                     const allocators::AllocatorOptions& options, const allocators::AllocatorState& start,
                     Bytes capacity_bytes) {
        const Recording recording = recording_of(action, address, size, stream, mempool);
        const py::gil_scoped_release released;
        return simulation::replay_recording(recording, options, start, capacity_bytes);
      },
      py::arg("action"), py::arg("address"), py::arg("size"), py::arg("stream"), py::arg("mempool"), py::arg("options"),
      py::arg("start"), py::arg("capacity_bytes"));
  core.def(
      "state_before",
      [recording_of](const Column<std::uint8_t>& action, const Column<Bytes>& address, const Column<Bytes>& size,
                     const Column<std::int64_t>& stream, const Column<std::int32_t>& mempool,
                     const allocators::AllocatorOptions& options, const allocators::AllocatorState& end) {
        const Recording recording = recording_of(action, address, size, stream, mempool);
        const py::gil_scoped_release released;
        return simulation::state_before(recording, options, end);
      },
      py::arg("action"), py::arg("address"), py::arg("size"), py::arg("stream"), py::arg("mempool"), py::arg("options"),
      py::arg("end"));
}

}  // namespace

void register_simulation(py::module_& core) {
  bind_options(core);
  bind_sequence(core);
  bind_state(core);
  bind_replay(core);
  bind_gauge_replay(core);
  bind_recording(core);
}

}  // namespace xmem::bindings
