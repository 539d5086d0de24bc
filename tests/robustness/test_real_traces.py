"""Real traces come out the same whichever way they come in, and hold what a count of plain JSON finds."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmem
from xmem import _core
from xmem.trace.trace import SPAN_KINDS, WITH_INPUTS

ROOT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("XMEM_SHARED", ROOT.parent / "shared")) / "data" / "traces"

SMALL_BYTES = 1 << 20
"""Longest text that is fed byte by byte: a call a byte."""

COLUMNS = [name for name in dir(_core.Trace) if name.startswith(("span_", "memory_"))]


def real_traces() -> list[Any]:
    return [pytest.param(path, id=path.name) for path in sorted(TRACES.glob("*.json.gz"))] or [
        pytest.param(None, marks=pytest.mark.skip(f"no real traces: {TRACES} is absent"))
    ]


# Ways in.


def from_file(text: bytes, folder: Path) -> _core.Trace:
    path = folder / "trace.json"
    path.write_bytes(text)
    return xmem.read_trace(path).core


def from_gzip(text: bytes, folder: Path) -> _core.Trace:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    return xmem.read_trace(path).core


def from_gzip_of_many_streams(text: bytes, folder: Path) -> _core.Trace:
    path = folder / "members.json.gz"
    third = len(text) // 3
    pieces = (text[:third], text[third : 2 * third], text[2 * third :])
    path.write_bytes(b"".join(gzip.compress(piece, 1) for piece in pieces))
    return xmem.read_trace(path).core


def from_pipe(text: bytes, folder: Path) -> _core.Trace:
    """The core's own reading of a path: ``read_trace`` looks at the first bytes of it before."""
    path = folder / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(text,))
    writer.start()
    try:
        return _core.read_trace_file(str(path), WITH_INPUTS)
    finally:
        writer.join()


def in_pieces(lengths: Callable[[int], Iterator[int]]) -> Callable[[bytes, Path], _core.Trace]:
    def read(text: bytes, _folder: Path) -> _core.Trace:
        reader = _core.TraceReader(WITH_INPUTS)
        view = memoryview(text)
        at = 0
        for length in lengths(len(text)):
            reader.feed(view[at : at + length])
            at += length
        assert at >= len(text)
        return reader.finish()

    return read


def of_one_length(piece: int) -> Callable[[int], Iterator[int]]:
    return lambda size: (piece for _ in range(0, size, piece))


def of_random_lengths(size: int) -> Iterator[int]:
    lengths = np.random.default_rng(size).geometric(1 / 5000, size=size // 500 + 100)
    assert lengths.sum() > size
    return iter(lengths.tolist())


WAYS_IN = {
    "file": from_file,
    "gzip": from_gzip,
    "gzip of many streams": from_gzip_of_many_streams,
    "pipe": from_pipe,
    "pieces of 63 bytes": in_pieces(of_one_length(63)),
    "pieces of 4097 bytes": in_pieces(of_one_length(4097)),
    "pieces of random lengths": in_pieces(of_random_lengths),
}


def assert_same(found: _core.Trace, expected: _core.Trace, way: str) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), f"{way}: {column}")
    for what in ("names", "counts", "diagnostics", "metadata", "bytes", "event_count"):
        assert getattr(found, what) == getattr(expected, what), f"{way}: {what}"


@pytest.mark.parametrize("path", real_traces())
def test_every_way_in_gives_the_same(path: Path, tmp_path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    expected = xmem.read_trace(text).core
    assert_same(xmem.read_trace(path).core, expected, "as it is")
    for way, read in WAYS_IN.items():
        assert_same(read(text, tmp_path), expected, way)
    if len(text) <= SMALL_BYTES:
        assert_same(in_pieces(of_one_length(1))(text, tmp_path), expected, "byte by byte")


# A count that shares nothing with the core nor with the reference but the standard library's JSON.


@pytest.mark.parametrize("path", real_traces())
def test_counts_and_sums_are_those_of_plain_json(path: Path) -> None:
    read = xmem.read_trace(path)
    document = json.loads(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"), strict=False)
    events = document if isinstance(document, list) else document["traceEvents"]
    assert read.core.event_count == len(events)
    assert not [problem for problem in read.problems if problem.severity == "data_loss"]

    memory = [event["args"] for event in events if event.get("name") == "[memory]"]
    assert len(read.memory) == len(memory)
    assert Counter(read.memory.bytes.tolist()) == Counter(args["Bytes"] for args in memory)
    assert Counter(read.memory.address.tolist()) == Counter(args.get("Addr", -1) for args in memory)
    assert Counter(read.memory.device_type.tolist()) == Counter(args.get("Device Type", 0) for args in memory)

    operators = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "Operator")]
    annotations = [e for e in events if e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    kinds = [SPAN_KINDS[kind] for kind in read.events.kind]
    assert kinds.count("operator") + kinds.count("annotation") == len(operators) + len(annotations)
    names = Counter(
        read.names[name]
        for name, kind in zip(read.events.name.tolist(), kinds, strict=True)
        if kind in ("operator", "annotation")
    )
    assert names == Counter(event["name"] for event in operators + annotations)
    assert sum(read.counts.values()) == len(events)
