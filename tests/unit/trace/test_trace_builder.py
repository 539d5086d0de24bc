"""The builder writes what torch.profiler writes, so that a test's trace is read as a real one is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from xmem.testing.trace_builder import TraceBuilder, nanoseconds

# Three events as torch 2.13.0 wrote them, gaps and missing blanks included.
TORCH_213 = """
  {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::t",
    "pid": 4739,
    "tid": 4739,
    "ts": 4374022156328.662,
    "dur": 191.726
    ,
    "args": {
      "External id": 1,"Sequence number": 0, "Fwd thread id": 0, "Record function id": 0, "Input type": ["float"], "Ev Idx": 0
    }
  },
  {
    "ph": "i",
    
    "cat": "cpu_instant_event",
    "s": "t",
    "name": "[memory]",
    "pid": 4739,
    "tid": 4739,
    "ts": 4374022156599.476
    ,
    "args": {
      "Total Reserved": 0, "Total Allocated": 144, "Bytes": 48, "Device Id": -1, "Device Type": 0, "Addr": 94923589841664, "finished": false, "Ev Idx": 1
    }
  },
  {
    "ph": "X",
    "cat": "python_function",
    "name": "mk.py(5): <module>",
    "pid": 4739,
    "tid": 4739,
    "ts": 4374022153289.970,
    "dur": 38245.841
    ,
    "args": {
      "Python parent id": null, "Python id": 1, "Ev Idx": 2
    }
  }
  ],"traceName": "trace.json" }"""  # noqa: E501, W293


def test_writes_events_exactly_as_torch_does() -> None:
    trace = (
        TraceBuilder(pid=4739, tid=4739)
        .operator(
            "aten::t", "4374022156328.662", "4374022156520.388", sequence_number=0, input_types=["float"]
        )
        .memory(48, "4374022156599.476", address=94923589841664, total_allocated=144)
        .user_frame("mk.py", 5, "<module>", "4374022153289.970", "4374022191535.811")
    )
    assert trace.json().endswith('"traceEvents": [\n    ' + TORCH_213)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("format", ["torch213", "compact"])
def test_every_layout_holds_the_same_json(format: str, ascii_only: bool) -> None:
    trace = TraceBuilder().operator('aten::"\u2603\n', 1, 2).alloc(8, 512, 1).with_metadata(iterations=1)
    document = json.loads(trace.json(format, ascii_only=ascii_only))  # type: ignore[arg-type]
    assert document["xmem"] == {"format": 1, "iterations": 1}
    assert [event["name"] for event in document["traceEvents"]] == ['aten::"\u2603\n', "[memory]"]
    assert trace.json(format, ascii_only=ascii_only).isascii() == ascii_only  # type: ignore[arg-type]


def test_metadata_stands_before_the_events() -> None:
    text = TraceBuilder().with_metadata(iterations=1).operator("aten::t", 0, 1).json()
    assert text.index('"xmem"') < text.index('"traceEvents"')


def test_2021_is_a_bare_list_in_other_words() -> None:
    trace = TraceBuilder().operator("aten::t", 1, 2).annotation("ProfilerStep#0", 0, 3).alloc(8, 512, 1)
    operator, annotation, memory = json.loads(trace.json("2021"))
    assert operator["cat"] == annotation["cat"] == "Operator"
    assert "cat" not in memory
    assert memory["args"] == {"Bytes": 512, "Device Id": -1, "Device Type": 0}


def test_2021_has_no_place_for_metadata() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        TraceBuilder().with_metadata().json("2021")


def test_numbers_what_torch_numbers() -> None:
    def indices(trace: TraceBuilder) -> list[int | None]:
        events = trace.iteration(0, 0, 9).operator("aten::t", 1, 2).alloc(8, 512, 1).events
        return [event["args"].get("Ev Idx") for event in events]

    assert indices(TraceBuilder()) == [None, 0, 1]
    assert indices(TraceBuilder(numbering="all")) == [0, 1, 2]
    assert indices(TraceBuilder(numbering="none")) == [None, None, None]


def test_frees_what_was_allocated_there() -> None:
    trace = TraceBuilder().alloc(8, 512, 1).alloc(8, 99, 1, device_type=1, device_index=0).free(8, 2)
    assert trace.events[-1]["args"]["Bytes"] == -512
    with pytest.raises(KeyError):
        trace.free(16, 3)


def test_events_go_to_the_chosen_thread() -> None:
    trace = (
        TraceBuilder(pid=1, tid=2).operator("a", 0, 1).on(3).operator("b", 0, 1).on(4, pid=5).alloc(8, 1, 1)
    )
    assert [(event["pid"], event["tid"]) for event in trace.events] == [(1, 2), (1, 3), (5, 4)]


def test_times_keep_every_nanosecond() -> None:
    assert nanoseconds("4374022156328.662") == 4_374_022_156_328_662
    assert '"ts": 4374022156328.001' in TraceBuilder().alloc(8, 1, "4374022156328.001").json()


def test_suffix_chooses_compression(tmp_path: Path) -> None:
    trace = TraceBuilder().alloc(8, 1, 1)
    plain, packed = trace.write(tmp_path / "t.json"), trace.write(tmp_path / "t.json.gz", "compact")
    assert plain.read_bytes() == trace.bytes()
    assert gzip.decompress(packed.read_bytes()) == trace.bytes("compact")
