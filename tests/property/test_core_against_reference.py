"""The core computes what the readable reference computes, and both obey laws that need no oracle.

XMEM_HYPOTHESIS_EXAMPLES sets the number of traces a test (default 100, a third for the laws).
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xmem
from xmem.printable import one_line
from xmem.testing import rows, strategies
from xmem.testing.reference import attribution, pairing, trace
from xmem.testing.reference.attribution import Attribution
from xmem.testing.reference.pairing import Block, BlockFlag
from xmem.testing.reference.trace import MemoryEvent, Span
from xmem.testing.trace_builder import TraceBuilder

ROOT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("XMEM_SHARED", ROOT.parent / "shared")) / "data" / "traces"

LARGE_BYTES = 1 << 20

READING_PROBLEMS = ("bad_event", "bad_duration")

needs_core = pytest.mark.skipif(not hasattr(xmem, "read_trace"), reason="the core is not built here")
EXAMPLES = int(os.environ.get("XMEM_HYPOTHESIS_EXAMPLES", "100"))
thorough = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Reading:
    """A trace in the words of the reference, whoever read it."""

    spans: list[Span]
    memory: list[MemoryEvent]
    counts: dict[str, int]
    diagnostics: dict[str, int]
    metadata: dict[str, Any] | None


@dataclass(frozen=True)
class Answer:
    """A trace with its blocks and what they belong to."""

    reading: Reading
    blocks: list[Block]
    attribution: list[Attribution]


Source = bytes | Path
Side = Callable[[Source], Answer]


def reference_reading(source: Source) -> Reading:
    return _reading_of(trace.read(source))


def _reading_of(read: trace.ReferenceTrace) -> Reading:
    # The reference keeps names as the file has them; whoever asks the core gets them printable.
    spans = [replace(span, name=one_line(span.name)) for span in read.spans]
    return Reading(spans, read.memory, dict(read.counts), dict(read.diagnostics), read.metadata)


def reference_answer(source: Source) -> Answer:
    read = trace.read(source)
    blocks = pairing.pair(read)
    return Answer(_reading_of(read), blocks, attribution.attribute(read, blocks, read.metadata))


def core_reading(source: Source) -> Reading:
    return _reading_of_core(xmem.read_trace(source))


def core_answer(source: Source) -> Answer:
    read = xmem.read_trace(source)
    blocks = xmem.pair_blocks(read)
    found = xmem.attribute(read, blocks)
    return Answer(_reading_of_core(read), rows.block_rows(blocks), rows.attribution_rows(found))


def _reading_of_core(read: Any) -> Reading:
    problems: Counter[str] = Counter()
    for kind, count, _ in read.diagnostics:
        problems[kind] += count
    return Reading(
        spans=rows.span_rows(read),
        memory=rows.memory_rows(read),
        counts={kind: count for kind, count in read.counts.items() if count},
        diagnostics={kind: problems[kind] for kind in READING_PROBLEMS if problems[kind]},
        metadata=read.metadata,
    )


# The core against the reference.


@needs_core
@thorough
@given(st.data())
def test_reads_the_same_rows(data: st.DataObject) -> None:
    builder = data.draw(strategies.builders())
    text = data.draw(strategies.texts(data.draw(strategies.with_noise(builder))))
    assert core_reading(text) == reference_reading(text)


@needs_core
@thorough
@given(st.data())
def test_finds_the_same_blocks_and_attribution(data: st.DataObject) -> None:
    text = data.draw(strategies.builders()).bytes("compact")
    assert core_answer(text) == reference_answer(text)


@needs_core
@thorough
@given(st.data())
def test_agrees_where_spans_cross(data: st.DataObject) -> None:
    text = data.draw(strategies.builders(strategies.crossing_events())).bytes("compact")
    assert core_answer(text) == reference_answer(text)


@needs_core
@pytest.mark.parametrize("levels", [99, 100, 101, 102, 150])
def test_agrees_on_paths_of_deep_modules(levels: int) -> None:
    builder = TraceBuilder()
    for level in range(levels):
        builder.module_frame(f"M_{level}", level, 10_000 - level)
        builder.alloc(0x1000 + 64 * level, 64, at_us=level)
    text = builder.bytes("compact")
    assert core_answer(text) == reference_answer(text)


@needs_core
@thorough
@given(st.data())
def test_points_at_the_first_bad_event(data: st.DataObject) -> None:
    builder = data.draw(strategies.with_noise(data.draw(strategies.builders())))
    text = builder.bytes("compact")
    for _, count, first_byte_offset in xmem.read_trace(text).diagnostics:
        assert count > 0
        assert text[first_byte_offset : first_byte_offset + 1] == b"{"


def real_traces() -> list[Any]:
    """Real files, large ones each night; blocks are compared where the quadratic reference ends within
    seconds."""
    blocks_too = {
        "a100_particle_transformer_forward_b512.json.gz",
        "cpu_particle_transformer_forward.json.gz",
        "h100_bert_small_inference.json.gz",
        "rocm_bert_small_inference.json.gz",
        "t4_toy_training_amp.json.gz",
        "t4_toy_training_fp32.json.gz",
    }
    paths = sorted(TRACES.glob("*.json.gz"))
    return [
        pytest.param(
            path,
            path.name in blocks_too,
            id=path.name,
            marks=[pytest.mark.nightly] if path.stat().st_size > LARGE_BYTES else [],
        )
        for path in paths
    ] or [pytest.param(None, False, marks=pytest.mark.skip(f"no real traces: {TRACES} is absent"))]


@needs_core
@pytest.mark.parametrize(("path", "blocks_too"), real_traces())
def test_agrees_on_real_traces(path: Path, blocks_too: bool) -> None:
    if blocks_too:
        assert core_answer(path) == reference_answer(path)
    else:
        assert core_reading(path) == reference_reading(path)


# Laws.

both_sides = pytest.mark.parametrize(
    "answer",
    [pytest.param(reference_answer, id="reference"), pytest.param(core_answer, id="core", marks=needs_core)],
)
quick = settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))


@both_sides
@quick
@given(data=st.data())
def test_the_way_of_writing_changes_nothing(answer: Side, data: st.DataObject) -> None:
    builder = data.draw(strategies.builders())
    pretty, compact = builder.bytes("torch213"), builder.bytes("compact")
    assert answer(pretty) == answer(compact) == answer(builder.bytes("compact", ascii_only=True))


@both_sides
@quick
@given(data=st.data())
def test_the_way_in_changes_nothing(answer: Side, data: st.DataObject, tmp_path_factory: Any) -> None:
    """Memory, file, one gzip stream or many, padding that moves events over the borders of any window."""
    builder = data.draw(strategies.builders())
    text = builder.bytes("compact")
    expected = answer(text)
    folder = tmp_path_factory.mktemp("way_in")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    padding = b" " * data.draw(st.sampled_from([1, 4095, 65_537, 1_048_577]))
    padded = text.replace(b'"traceEvents":[', b'"traceEvents":[' + padding).replace(
        b"},{", b"}," + padding[:9] + b"{"
    )

    (folder / "plain.json").write_bytes(text)
    (folder / "members.json.gz").write_bytes(b"".join(map(gzip.compress, pieces)))
    (folder / "padded.json").write_bytes(padded)
    (folder / "padded.json.gz").write_bytes(gzip.compress(padded, 1))
    for path in folder.iterdir():
        assert answer(path) == expected, path.name


@both_sides
@quick
@given(data=st.data())
def test_what_is_skipped_changes_only_the_counts(answer: Side, data: st.DataObject) -> None:
    builder = data.draw(strategies.builders())
    noisy = data.draw(strategies.with_noise(builder))
    clean, found = answer(builder.bytes()), answer(noisy.bytes())
    assert replace(found.reading, counts={}, diagnostics={}) == replace(
        clean.reading, counts={}, diagnostics={}
    )
    assert (found.blocks, found.attribution) == (clean.blocks, clean.attribution)


@both_sides
@quick
@given(data=st.data())
def test_the_order_in_the_file_changes_nothing_where_events_are_numbered(
    answer: Side, data: st.DataObject
) -> None:
    builder = TraceBuilder(numbering="all")
    for event in data.draw(strategies.events()):
        builder.event(event)
    shuffled = TraceBuilder(events=data.draw(strategies.shuffled(builder.events)))
    assert answer(shuffled.bytes()) == answer(builder.bytes())


@both_sides
@quick
@given(data=st.data())
def test_a_shifted_clock_shifts_times_alone(answer: Side, data: st.DataObject) -> None:
    builder = data.draw(strategies.builders())
    shift_ns = data.draw(st.sampled_from([1, 999, 1_000_000_007, strategies.ORIGIN_NS]))
    shifted = TraceBuilder(
        events=[{**event, "ts": event["ts"] + Decimal(shift_ns).scaleb(-3)} for event in builder.events],
        metadata=_with_column(builder.metadata, "time_ns", lambda time_ns: time_ns + shift_ns),
    )
    before, after = answer(builder.bytes()), answer(shifted.bytes())
    assert after.attribution == before.attribution
    for block in before.blocks:
        block.alloc_ns += shift_ns
        block.free_ns += 0 if block.is_live else shift_ns
    assert after.blocks == before.blocks


@both_sides
@quick
@given(data=st.data())
def test_renamed_addresses_rename_blocks_alone(answer: Side, data: st.DataObject) -> None:
    builder = data.draw(strategies.builders())
    names = dict(zip(strategies.ADDRESSES, data.draw(st.permutations([8, 16, 2**47])), strict=True))

    def renamed(event: dict[str, Any]) -> dict[str, Any]:
        args = event["args"]
        return {**event, "args": {**args, "Addr": names[args["Addr"]]}} if "Addr" in args else event

    other = TraceBuilder(
        events=[renamed(event) for event in builder.events],
        metadata=_with_column(builder.metadata, "address", names.__getitem__),
    )
    before, after = answer(builder.bytes()), answer(other.bytes())
    assert after.attribution == before.attribution
    for block in before.blocks:
        block.address = names.get(block.address, block.address)
    assert after.blocks == before.blocks


@both_sides
@quick
@given(data=st.data())
def test_blocks_at_one_address_never_overlap(answer: Side, data: st.DataObject) -> None:
    blocks = answer(data.draw(strategies.builders()).bytes()).blocks
    places: dict[tuple[int, int, int], list[Block]] = {}
    for block in blocks:
        assert block.size_bytes > 0
        assert block.alloc_ns <= block.free_ns
        if block.address >= 0 and BlockFlag.BORN_BEFORE not in block.flags:
            places.setdefault((*block.device, block.address), []).append(block)
    for place in places.values():
        for earlier, later in pairwise(place):
            assert earlier.free_ns <= later.alloc_ns, astuple(earlier)


def _with_column(
    metadata: dict[str, Any] | None, column: str, change: Callable[[int], int]
) -> dict[str, Any] | None:
    if metadata is None:
        return None
    tensors = {**metadata["tensors"], column: [change(value) for value in metadata["tensors"][column]]}
    return {**metadata, "tensors": tensors}
