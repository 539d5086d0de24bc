"""What captures noted, as typed values: early formats, later ones, and damaged ones."""

from __future__ import annotations

from typing import Any

import pytest

import xmem
from training_sample import training
from xmem.errors import TraceError
from xmem.trace.notes import AllocatorNotes, parse_notes

ONE_TENSOR = {"role": ["parameter"], "name": ["a"], "address": [1], "size_bytes": [1], "time_ns": [1]}
CARD = {"card": 0, "peak_bytes": 1, "contexts": 1, "context_bytes": 1}


def test_entries_that_are_not_there_have_defaults_and_unknown_ones_are_left_out() -> None:
    notes = parse_notes({"format": 1, "invented_later": 3, "versions": {"torch": "2.6.0+cu124"}})
    assert (notes.torch_version, notes.iterations, notes.allocator) == ("2.6.0", 0, None)


def test_requests_of_early_captures_are_kept_apart() -> None:
    notes = parse_notes({"phantom": {"requests": {"size_bytes": [512], "stream": []}}})
    assert notes.phantom is not None
    assert notes.phantom.requests == ()
    assert notes.phantom.unordered_requests is not None
    assert notes.phantom.unordered_requests.size_bytes == [512]


def test_the_busiest_device_is_that_of_the_first_rank() -> None:
    devices = [{"device": number, "peak_reserved_bytes": size} for number, size in ((0, 5), (1, 9))]
    other = {"rank": 1, "devices": [{"device": 0, "peak_reserved_bytes": 99}]}
    notes = parse_notes({"measured": {"ranks": [{"rank": 0, "devices": devices}, other]}})
    assert notes.allocator is not None
    assert notes.allocator.busiest is not None
    assert notes.allocator.busiest.device == 1
    assert AllocatorNotes().busiest is None


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"iterations": "3"}, "iterations must be a whole number"),
        ({"argv": [1]}, r"argv\[0\] must be text"),
        ({"tensors": {"role": ["parameter"], "name": []}, "iterations": 3}, None),
        ({"tensors": {"role": ["parameter"], "name": [{"a": 1}]}}, "tensors.name must hold only text"),
        ({"tensors": {"role": ["parameter"], "name": ["a", "b"]}}, "tensors.name must have 1 rows, not 2"),
        ({"tensors": {"role": 3}}, "tensors.role must be a list"),
        *(
            ({"tensors": {**ONE_TENSOR, column: []}}, f"tensors.{column} must have 1 rows, not 0")
            for column in ("shape", "group")
        ),
        ({"phantom": {"cards": [{**CARD, "peak_bytes": 1 << 70}]}}, "at most 64 bits"),
        ({"phantom": {"ranks": [{"rank": 0, "devices": [{"device": 0}]}]}}, "peak_reserved_bytes is missing"),
    ],
)
def test_damaged_notes_are_refused_with_their_place(entries: dict[str, Any], says: str | None) -> None:
    trace = training()
    trace.metadata = {**(trace.metadata or {}), "format": 1, **entries}
    with pytest.raises(TraceError, match=says) as raised:
        xmem.estimate(trace.bytes())
    assert "capture again" in str(raised.value)


HISTORY: dict[str, Any] = {
    "device": 0,
    "address": [64, 128],
    "size_bytes": [8, 8],
    "order": [-1, 0, -1],
    **{name: [] for name in ("stream", "mempool", "waits", "restored", "marks")},
}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("address", ["64", 128], "address must hold only whole numbers"),
        ("address", [64, 1 << 63], "address must hold only whole numbers"),
        ("size_bytes", [8], "size_bytes must have 2 rows, not 1"),
        ("size_bytes", [8, -8], "size_bytes does not fit"),
        ("order", [-1, 1, -1], "order frees 1, which is not allocated"),
        ("order", [-1, 0, 0, -1], "order frees 0, which is not allocated"),
        ("order", [-1, -2], "order frees -2"),
        ("order", [-1], "order does not fit its 2 allocations"),
        ("mempool", [0, 1 << 40], "mempool does not fit"),
        ("waits", [2], "waits does not fit"),
        ("restored", [[0, 2]], "restored does not fit"),
        ("restored", [0], "restored does not fit"),
        ("marks", [[0, "empty_cache"]], "marks does not fit"),
        ("marks", [[0, "empty_cache", -2]], "marks does not fit"),
    ],
)
def test_a_history_that_names_no_allocation_of_its_own_is_refused(
    column: str, values: list[Any], message: str
) -> None:
    good = {**HISTORY, "marks": [[0, "empty_cache", -1]]}
    assert parse_notes({"phantom": {"requests": [good]}}).phantom is not None
    with pytest.raises(ValueError, match=message):
        parse_notes({"phantom": {"requests": [{**HISTORY, column: values}]}})
