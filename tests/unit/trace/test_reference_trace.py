"""Sections 1 to 3 of docs/trace_model.md, a test a rule."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from xmem.errors import TraceError
from xmem.testing.reference.trace import Span, frame_line, read
from xmem.testing.trace_builder import TraceBuilder


def read_events(*events: Any) -> Any:
    return read(json.dumps({"traceEvents": events}).encode())


def span(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::t", "pid": 1, "tid": 1, "ts": 1, "dur": 2, **fields}


def memory(**fields: Any) -> dict[str, Any]:
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {"Bytes": 8}, **fields}


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::t", "operator"),
        ("Operator", "aten::t", "operator"),
        ("user_annotation", "anything", "annotation"),
        ("Operator", "ProfilerStep#3", "annotation"),
        ("Operator", "Optimizer.step#SGD.step", "annotation"),
        ("Operator", "enumerate(DataLoader)#_Iter.__next__", "annotation"),
        ("cpu_op", "ProfilerStep#3", "operator"),
        ("python_function", "nn.Module: Linear_0", "module_frame"),
        ("python_function", "train.py(3): main", "user_frame"),
        ("xmem_module", "Net.body", "module"),
        ("xmem_line", "train.py:3", "line"),
        ("xmem_host", "host", "host"),
        ("xmem_iteration", "iteration 0", "iteration"),
    ],
)
def test_kinds_of_spans(category: str, name: str, kind: str) -> None:
    trace = read_events(span(cat=category, name=name))
    assert [row.kind for row in trace.spans] == [kind]
    assert trace.counts == {kind: 1}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.py(3): main", "train.py:3"),
        ("/home/me/copy (1)/train.py(31): <lambda>", "/home/me/copy (1)/train.py:31"),
        ("a.py(1): f b.py(2): g", "a.py:1"),
        ("<frozen runpy>.py(1): main", None),
        ("torch/nn/modules/module.py(1): forward", None),
        ("/venv/lib/site-packages/timm/net.py(1): forward", None),
        ("/usr/lib/python3/dist-packages/numpy/core.py(1): f", None),
        ("/usr/lib/python3.11/contextlib.py(1): f", None),
        ("train.pyx(3): main", None),
        ("<built-in method empty>", None),
    ],
)
def test_frames_of_the_users_code(name: str, line: str | None) -> None:
    assert frame_line(name) == line


def test_what_is_not_kept_is_counted_by_category_else_by_phase() -> None:
    trace = read_events(span(cat="kernel"), span(cat="python_function"), {"ph": "M"}, span(ph="B"))
    assert trace.counts == {"kernel": 1, "python_function": 1, "M": 1, "cpu_op": 1}
    assert not trace.spans


@pytest.mark.parametrize(
    "event",
    [
        span(ts=None),
        span(ts="1"),
        span(ts=True),
        span(name=None),
        span(name=3),
        memory(ts=None),
        memory(args={}),
        memory(args=None),
        memory(args={"Bytes": "8"}),
        memory(args={"Bytes": 8.5}),
        7,
    ],
)
def test_events_without_a_needed_field_are_dropped_and_counted(event: Any) -> None:
    trace = read_events(event)
    assert (trace.spans, trace.memory, trace.counts) == ([], [], {})
    assert trace.diagnostics == {"bad_event": 1}


@pytest.mark.parametrize("duration", [None, -1, "2"])
def test_a_bad_duration_is_zero_and_counted(duration: Any) -> None:
    trace = read_events(span(dur=duration))
    assert [(row.begin_ns, row.end_ns) for row in trace.spans] == [(1000, 1000)]
    assert trace.diagnostics == {"bad_duration": 1}


def test_times_are_exact_where_a_double_is_not() -> None:
    trace = read(TraceBuilder().operator("a", "4373598193210.001", "4373598193210.003").bytes())
    assert [(row.begin_ns, row.end_ns) for row in trace.spans] == [(4373598193210001, 4373598193210003)]


def test_columns_of_spans() -> None:
    args = {"Sequence number": 5, "Fwd thread id": 2, "Input type": ["float", ""]}
    expected = Span("operator", "aten::t", 0, 1000, 3000, 5, 2, ["float", ""], row=0)
    assert read_events(span(args=args)).spans == [expected]


def test_columns_of_memory_events() -> None:
    args = {
        "Bytes": -8,
        "Addr": 16,
        "Device Type": 1,
        "Device Id": 3,
        "Total Allocated": 40,
        "Total Reserved": 64,
    }
    full, bare = read_events(memory(args=args), memory()).memory
    assert (full.address, full.bytes, full.device, full.total_allocated, full.total_reserved) == (
        16,
        -8,
        (1, 3),
        40,
        64,
    )
    assert (bare.address, bare.bytes, bare.device, bare.total_allocated, bare.total_reserved) == (
        -1,
        8,
        (0, -1),
        -1,
        -1,
    )


def test_spans_are_sorted_by_thread_then_begin_then_longest_first() -> None:
    trace = TraceBuilder().on(7).operator("late", 5, 6).operator("inner", 1, 2).operator("outer", 1, 9)
    trace.on(3).operator("other thread", 0, 1)
    assert [row.name for row in read(trace.bytes()).spans] == ["outer", "inner", "late", "other thread"]


def test_numbered_events_break_ties_by_number_others_by_position() -> None:
    one, two = span(name="one", args={"Ev Idx": 1}), span(name="two", args={"Ev Idx": 2})
    assert [row.name for row in read_events(two, one).spans] == ["one", "two"]
    assert [row.name for row in read_events(two, one, span(name="no number")).spans] == [
        "two",
        "one",
        "no number",
    ]


def test_each_table_decides_for_itself_whether_it_is_numbered() -> None:
    unnumbered = span(name="span")
    first, second = memory(args={"Bytes": 1, "Ev Idx": 1}), memory(args={"Bytes": 2, "Ev Idx": 2})
    assert [row.bytes for row in read_events(second, first, unnumbered).memory] == [1, 2]


def test_threads_are_numbered_by_first_kept_event() -> None:
    trace = read_events(
        span(tid=9, cat="kernel"), span(tid=8, ts=None), memory(tid=7), span(tid=9), span(tid="7")
    )
    assert [row.thread for row in trace.memory] == [0]
    assert [row.thread for row in trace.spans] == [0, 1]


def test_the_first_of_duplicate_keys_counts() -> None:
    event = '{"ph":"X","ph":"B","cat":"cpu_op","name":"a","name":"b","ts":7,"ts":1,"dur":1}'
    assert [(row.name, row.begin_ns) for row in read(f"[{event}]".encode()).spans] == [("a", 7000)]


def test_metadata_is_kept_and_other_keys_are_skipped() -> None:
    text = '{"traceName": 1, "xmem": {"format": 1}, "traceEvents": [], "more": [{"traceEvents": 1}]}'
    assert read(text.encode()).metadata == {"format": 1}


def test_odd_bytes_in_names_are_read() -> None:
    text = json.dumps([span(name="one"), span(name="two")]).encode()
    text = text.replace(b"one", b"\xffone").replace(b"two", b"t\x01wo")
    assert [row.name for row in read(text).spans] == ["\ufffdone", "t\x01wo"]


@pytest.mark.parametrize(
    "text", ["", "hello", '{"a": 1}', '"text"', "7", '{"traceEvents": {}}', '[{"ph": "X"']
)
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"bad\.json"):
        read(path)


def test_a_cut_text_names_the_byte() -> None:
    with pytest.raises(TraceError) as caught:
        read('[{"name": "\u2603"}, {'.encode())
    assert caught.value.byte_offset == len('[{"name": "\u2603"}, {'.encode())


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    packed = TraceBuilder().alloc(8, 1, 1).write(tmp_path / "t.json.gz").read_bytes()
    assert len(read(packed).memory) == 1
    with pytest.raises(TraceError, match="gzip"):
        read(packed[:-9])
    assert gzip.decompress(packed).startswith(b" {")
