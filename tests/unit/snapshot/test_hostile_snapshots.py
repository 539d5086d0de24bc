"""Snapshots from strangers: refused before anything large is built, with the place, and never agreed to."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem import _core
from xmem.errors import ConfigError, TraceError
from xmem.snapshot.comparison import compare
from xmem.snapshot.snapshot import read_snapshot

from .test_snapshot import SNAPSHOT, write

numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.sets(numbers)
    ),
    max_leaves=30,
)


@given(plain, st.integers(0, 5))
def test_plain_values_of_every_protocol_pass(value: Any, protocol: int) -> None:
    content = pickle.dumps([value, value, {"again": value}], protocol)
    if b"_codecs" in content or b"builtins" in content or b"__builtin__" in content:
        return  # bytes and sets of old protocols are calls
    _core.check_plain_pickle(content)


def levels(count: int, grow: Callable[[Any], Any]) -> Any:
    value: Any = grow(None)
    for _ in range(count):
        value = grow(value)
    return value


KEYS = pickle.dumps({(1 << 61) * i - i: None for i in range(10_001)})
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "a memo of 2147483647 places"),
        (b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"a.", "cut short"),
        (b"\x80\x04\x95" + (1 << 62).to_bytes(8, "little") + b"N.", "cut short"),
        (b"L" + b"7" * 5000 + b"L\n.", "an integer of 5001 digits"),
        (pickle.dumps(1 << 40_000), "an integer of 5001 digits or bytes"),
        (b"]" * 5_000_000 + b".", "would take more than"),
        (b"]" * 101 + b"a" * 100 + b".", "more than 100 levels deep"),
        (pickle.dumps(ITSELF), "holds itself"),
        (pickle.dumps(levels(11, lambda of: (of, of))), "a tuple of more than 1000 values"),
        (KEYS, "more than 10000 keys"),
        (b"cnt\x1b]0;title\nname\n.", r"import nt\?\]0;title\.name"),
        (b"}]s.", "stack is empty"),
        (b"(.", "stack is empty"),
        (b"N\x94h\x05.", "memo does not have"),
        (b"]q\x00]q\x01h\x00ah\x00(h\x01eh\x01.", "grows after it became part"),
    ],
)
def test_what_would_fill_memory_or_hang_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_snapshot(file)
    assert caught.value.path == str(file)


def test_a_structure_shared_level_by_level_is_named_in_a_few_words(tmp_path: Path) -> None:
    content = copy.deepcopy(SNAPSHOT)
    content["device_traces"][0][1]["action"] = levels(60, lambda of: [of, of])
    with pytest.raises(TraceError, match=r"entry 1 of .* no usable 'action'") as caught:
        read_snapshot(write(tmp_path, content))
    assert len(str(caught.value)) < 500


def test_what_is_no_file_is_not_waited_for() -> None:
    with pytest.raises(TraceError, match="no regular file"):
        read_snapshot("/dev/zero")


@pytest.mark.parametrize("size", [-512, 0, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("event", [0, 1])
def test_sizes_that_no_allocator_has_are_not_agreed_to(tmp_path: Path, event: int, size: int) -> None:
    content = copy.deepcopy(SNAPSHOT)
    content["device_traces"][0][event]["size"] = size
    with pytest.raises(TraceError, match=f"a size of {size} bytes") as caught:
        compare(read_snapshot(write(tmp_path, content)))
    assert caught.value.event_index == event


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("address", (1 << 62) - 512, "outside of the address space"),
        ("address", -512, "outside of the address space"),
        ("total_size", 0, "units of 512"),
        ("total_size", -(1 << 63), "units of 512"),
        ("total_size", 20 << 20 | 512, "do not fill"),
    ],
)
def test_segments_that_no_device_has_are_refused(tmp_path: Path, key: str, value: int, message: str) -> None:
    content = copy.deepcopy(SNAPSHOT)
    content["segments"][0][key] = value
    with pytest.raises(TraceError, match=message):
        compare(read_snapshot(write(tmp_path, content)))


def changed(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The snapshot with a few of its values, at any place, replaced by odd ones."""
    places: list[tuple[Any, Any]] = []

    def visit(of: Any) -> None:
        items = of.items() if isinstance(of, dict) else enumerate(of)
        for key, value in items:
            places.append((of, key))
            if isinstance(value, dict | list):
                visit(value)

    content = copy.deepcopy(content)
    visit(content)
    odd = [
        None,
        True,
        -1,
        0,
        511,
        512,
        1 << 30,
        (1 << 62),
        1 << 70,
        0.5,
        "",
        "alloc",
        [],
        {},
        (0, 1),
        [1],
        "\udc80",
    ]
    for of, key in chance.sample(places, chance.randint(1, 3)):
        of[key] = chance.choice(odd)
    return content


def test_a_changed_snapshot_is_replayed_or_refused(tmp_path: Path) -> None:
    for seed in range(400):
        file = write(tmp_path, changed(SNAPSHOT, random.Random(seed)))
        with suppress(TraceError, ConfigError):
            compare(read_snapshot(file))
