"""Sizes in and out of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem.errors import ConfigError
from xmem.text.units import format_bytes, format_change, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("512B", 512),
        ("24GiB", 24 * 1024**3),
        ("24GB", 24 * 1000**3),
        ("24G", 24 * 1024**3),
        ("11.5 GiB", 23 * 1024**3 // 2),
        (".5kib", 512),
        (" 1_0 ".replace("_", ""), 10),
        ("1.5tb", 1_500_000_000_000),
        ("2 MiB", 2 * 1024**2),
    ],
)
def test_parse(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["9" * 400, "1e30GiB".replace("e30", "0" * 30), "2000PiB"])
def test_more_than_any_machine_has_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="more memory than any machine has"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "text", ["", "banana", "-1GiB", "0", "0.0GB", "12 XB", "1e9", "GiB", "1,5GiB", "nan", "12GiB 3"]
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a size; write it like 11\.5GiB, 24GB or 8000000000"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-1536, "-1.50 KiB"),
        (12_622_168_064, "11.76 GiB"),
        (1024**4, "1.00 TiB"),
    ],
)
def test_format(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_format_reads_back_within_its_digits(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.005)


@pytest.mark.parametrize(
    ("size", "text"), [(512 * 1024**2, "+512.00 MiB"), (0, "0 B"), (-1536, "-1.50 KiB"), (1, "+1 B")]
)
def test_changes_have_a_sign(size: int, text: str) -> None:
    assert format_change(size) == text
