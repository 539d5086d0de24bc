"""Dataclasses of xmem.records behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from xmem import records


def make(dataclass: Any) -> Any:
    """The same classes, made by one of the two decorators."""

    @dataclass(frozen=True)
    class Base:
        """A base."""

        number: int
        text: str = "none"
        parts: list[int] = field(default_factory=list)
        told: str = field(default="", repr=False)
        seen: int = field(default=0, compare=False)
        notes: dict[str, int] = field(default_factory=dict, hash=False)
        KIND: ClassVar[str] = "base"

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(self.number)

        @cached_property
        def twice(self) -> int:
            return 2 * self.number

    @dataclass(frozen=True)
    class Derived(Base):
        share: float = 0.5
        where: str = field(kw_only=True)

    @dataclass(frozen=True, eq=False)
    class ByIdentity:
        number: int = 1

    class Undecorated(Derived):
        pass

    return Base, Derived, ByIdentity, Undecorated


OURS, THEIRS = make(records.dataclass), make(dataclasses.dataclass)
CALLS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (1,), {}),
    (0, (1, "a", [1, 2], "b", 3), {}),
    (0, (), {"parts": [7], "number": 2}),
    (1, (1,), {"where": "x"}),
    (1, (1, "a"), {"where": "x", "share": 0.25}),
    (2, (), {}),
    (3, (4,), {"where": "y"}),
]


@pytest.mark.parametrize(("which", "given", "named"), CALLS)
def test_values_are_those_of_the_standard_library(
    which: int, given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    one, other = OURS[which](*given, **named), THEIRS[which](*given, **named)
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert repr(one) == repr(other)
    assert [each.name for each in dataclasses.fields(one)] == [
        each.name for each in dataclasses.fields(other)
    ]
    assert type(one).__match_args__ == type(other).__match_args__
    again = OURS[which](*given, **named)
    assert (one == again) == (which != 2)
    assert copy.deepcopy(one) == one or which == 2
    changed = dataclasses.replace(one, number=9)
    assert (changed.number, changed == one) == (9, False)
    assert {**dataclasses.asdict(changed), "number": one.number} == dataclasses.asdict(one)


@pytest.mark.parametrize(
    ("which", "given", "named"),
    [
        (0, (), {}),
        (0, (), {"text": "a"}),
        (0, (1, "a", [], "b", 3, {}, 4), {}),
        (0, (1,), {"number": 2}),
        (0, (1,), {"colour": 2}),
        (1, (1,), {}),
        (1, (1, "a", [], "", 0, {}, 0.5, "x"), {}),
    ],
)
def test_wrong_arguments_are_refused(which: int, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kinds in (OURS, THEIRS):
        with pytest.raises(TypeError, match=re.escape(f"{kinds[which].__name__}") + ".*argument"):
            kinds[which](*given, **named)


def test_what_follows_the_fields_runs() -> None:
    for kinds in (OURS, THEIRS):
        with pytest.raises(ValueError, match="-1"):
            kinds[0](-1)


def test_equality_and_hashes_leave_out_what_is_not_compared() -> None:
    base, derived, *_ = OURS
    assert base(1, parts=(), seen=1) == base(1, parts=(), seen=2)
    assert hash(base(1, parts=(), seen=1)) == hash(base(1, parts=(), seen=2))
    assert hash(base(1, parts=(), notes={"a": 1})) == hash(base(1, parts=(), notes={"a": 2}))
    assert base(1, parts=(), notes={"a": 1}) != base(1, parts=(), notes={"a": 2})
    assert base(1) != derived(1, where="")
    with pytest.raises(TypeError, match="unhashable"):
        hash(base(1))


def test_fields_cannot_be_set_and_lazy_ones_can_be_kept() -> None:
    one = OURS[0](3)
    assert (one.twice, one.twice) == (6, 6)
    for change in (lambda: setattr(one, "number", 4), lambda: delattr(one, "number")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="number"):
            change()
    assert one.number == 3
    assert dataclasses.replace(one, number=5).twice == 10


def test_defaults_that_are_made_are_made_for_each() -> None:
    one, other = OURS[0](1), OURS[0](1)
    one.parts.append(4)
    assert other.parts == []


@records.dataclass(frozen=True)
class Pickled:
    number: int
    again: Pickled | None = None


def test_they_travel_between_processes() -> None:
    one = Pickled(1, Pickled(2))
    assert pickle.loads(pickle.dumps(one)) == one


def test_other_options_are_left_to_the_standard_library() -> None:
    @records.dataclass(frozen=True, slots=True)
    class Slotted:
        number: int

    @records.dataclass
    class Open:
        number: int

    assert not hasattr(Slotted(1), "__dict__")
    one = Open(1)
    one.number = 2
    assert one == Open(2)
