"""Dimensions as they are typed."""

from __future__ import annotations

import pytest

from xmem.errors import ConfigError
from xmem.scaling import grid, label, parse_point, parse_values, substitute


def test_values_points_and_their_grid() -> None:
    assert parse_values("batch=3,2") == ("batch", (2, 3))
    assert parse_point("batch=16,seq=128") == {"batch": 16, "seq": 128}
    assert label({"batch": 16, "seq": 128}) == "batch=16, seq=128"
    assert grid({"batch": (2, 3), "seq": (64, 96)}) == [
        {"batch": 2, "seq": 64},
        {"batch": 2, "seq": 96},
        {"batch": 3, "seq": 64},
        {"batch": 3, "seq": 96},
    ]


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=two", "batch=0,2", "batch=2,2", "=3", "a b=2"])
def test_invalid_dimensions(text: str) -> None:
    with pytest.raises(ConfigError, match="such as batch=2,3"):
        parse_values(text)


def test_a_point_has_each_dimension_once() -> None:
    with pytest.raises(ConfigError, match="each dimension once"):
        parse_point("batch=2,batch=3")


def test_placeholders_are_replaced_and_other_braces_left_alone() -> None:
    command = ["python", "train.py", "--batch={batch}", "{seq}x{seq}", '{"lr": 1}', "{other}"]
    assert substitute(command, {"batch": 2, "seq": 64}) == [
        "python",
        "train.py",
        "--batch=2",
        "64x64",
        '{"lr": 1}',
        "{other}",
    ]
    with pytest.raises(ConfigError, match=r"does not use \{width\}: python train.py .*; add"):
        substitute(command, {"batch": 2, "seq": 64, "width": 8})
