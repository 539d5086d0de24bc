"""Pickles written piece by piece: what Python's own reader makes of them, and opcodes that others know."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem.files.plain_pickle import PlainPickle, References

KNOWN_TO_THE_VIEWER = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE2", "NONE",
    "NEWTRUE", "NEWFALSE", "STOP", "LONG1", "BINUNICODE", "MEMOIZE", "LONG_BINGET",
}  # fmt: skip
"""Of the opcodes that MemoryViz.js of PyTorch interprets."""


def read(file: io.BytesIO) -> Any:
    data = file.getvalue()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= KNOWN_TO_THE_VIEWER
    return pickle.loads(data)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain)
def test_values_are_read_back(value: Any) -> None:
    file = io.BytesIO()
    written = PlainPickle(file)
    written.value(value)
    written.close()
    assert read(file) == value


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_rows_are_dicts(count: int) -> None:
    random = np.random.default_rng(count)
    sizes = random.integers(-(1 << 62), 1 << 62, count + 7)
    which = random.integers(0, 2, count + 7)
    file = io.BytesIO()
    written = PlainPickle(file)
    written.open_list()
    numbers = []
    for value in ("size", "of", {"name": "one"}, {"name": "two"}):
        numbers.append(written.remember(value))
        written.close_element()
    stack = written.remember_list(numbers[2:])
    written.close_element()
    columns = {"size": sizes, "of": References(np.array([*numbers[2:3], stack], np.uint32)[which])}
    written.rows(columns, 3, 3 + count)
    written.close()
    *_, one, two, both = (loaded := read(file))[:5]
    assert (one, two, both) == ({"name": "one"}, {"name": "two"}, [one, two])
    assert [row["size"] for row in loaded[5:]] == sizes[3 : 3 + count].tolist()
    assert all(
        row["of"] is (both if at else one) for row, at in zip(loaded[5:], which[3:].tolist(), strict=False)
    )


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="not plain data"):
        PlainPickle(io.BytesIO()).value(1.5)
