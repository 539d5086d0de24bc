"""Frozen dataclasses that cost little to define.

``dataclasses.dataclass(frozen=True)`` compiles six methods for every class, which takes half a millisecond.
An estimate imports some 130 such classes, and they were a third of its start-up. The methods of those made
here are the same few functions for every class. Everything else is as in the standard library: ``fields``,
``replace``, ``asdict``, comparing, hashing, printing, ``__post_init__`` and matching by position.
"""

from __future__ import annotations

import dataclasses
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn


def _dataclass(kind: Any = None, /, *, frozen: bool = False, eq: bool = True, **options: bool) -> Any:
    """Make a class a dataclass, as ``dataclasses.dataclass`` does; quickly if no other option is given than
    that it is frozen, and whether it is compared by value."""
    if kind is None:
        return lambda kind: _dataclass(kind, frozen=frozen, eq=eq, **options)
    if not frozen or options:
        return dataclasses.dataclass(kind, frozen=frozen, eq=eq, **options)
    # Without a text, the standard library derives one from the signature, which takes 5 ms.
    kind.__doc__ = kind.__doc__ or kind.__name__
    dataclasses.dataclass(init=False, repr=False, eq=False)(kind)
    kind._layout = _Layout.of(kind)
    for name, method in {**_METHODS, **(_METHODS_BY_VALUE if eq else {})}.items():
        if name not in kind.__dict__:
            setattr(kind, name, method)
    return kind


class _Layout(NamedTuple):
    """What the methods have to know of a class.

    Attributes:
        names: Fields, in order.
        positional: Those that may be given by position.
        defaults: Defaults of fields.
        factories: Functions that make defaults.
        compared: Fields that count for equality.
        hashed: Fields that count for the hash.
        shown: Fields that are printed.
        goes_on: Whether there is more to do after the fields are set.
    """

    names: tuple[str, ...]
    positional: tuple[str, ...]
    defaults: dict[str, Any]
    factories: dict[str, Any]
    compared: tuple[str, ...]
    hashed: tuple[str, ...]
    shown: tuple[str, ...]
    goes_on: bool

    @classmethod
    def of(cls, kind: Any) -> _Layout:
        fields, none = dataclasses.fields(kind), dataclasses.MISSING
        return cls(
            names=tuple(each.name for each in fields),
            positional=tuple(each.name for each in fields if not each.kw_only),
            defaults={each.name: each.default for each in fields if each.default is not none},
            factories={
                each.name: each.default_factory for each in fields if each.default_factory is not none
            },
            compared=tuple(each.name for each in fields if each.compare),
            hashed=tuple(each.name for each in fields if (each.compare if each.hash is None else each.hash)),
            shown=tuple(each.name for each in fields if each.repr),
            goes_on=hasattr(kind, "__post_init__"),
        )


def _init(self: Any, /, *given: Any, **named: Any) -> None:
    layout = self._layout
    values = self.__dict__
    values.update(zip(layout.positional, given, strict=False))
    values.update(named)
    count = len(values)
    if count < len(layout.names):
        for name, default in layout.defaults.items():
            values.setdefault(name, default)
        for name, make in layout.factories.items():
            if name not in values:
                values[name] = make()
    if count != len(given) + len(named) or len(values) != len(layout.names):
        raise TypeError(f"{type(self).__name__}() {_fault(layout, given, named)}")
    if layout.goes_on:
        self.__post_init__()


def _fault(layout: _Layout, given: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Return what is wrong with the arguments of a call."""
    if len(given) > len(layout.positional):
        return f"takes {len(layout.positional)} positional arguments but {len(given)} were given"
    for name in named:
        if name not in layout.names:
            return f"got an unexpected keyword argument {name!r}"
    by_position = layout.positional[: len(given)]
    for name in named:
        if name in by_position:
            return f"got multiple values for argument {name!r}"
    known = {*by_position, *named, *layout.defaults, *layout.factories}
    missing = ", ".join(repr(name) for name in layout.names if name not in known)
    return f"is missing the arguments {missing}"


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    compared = self._layout.compared
    return _values(self, compared) == _values(other, compared)


def _hash(self: Any) -> int:
    return hash(_values(self, self._layout.hashed))


def _values(record: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    values = record.__dict__
    return tuple([values[name] for name in names])


@recursive_repr("...")
def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._layout.shown)
    return f"{self.__class__.__qualname__}({values})"


def _refuse_to_set(_self: object, name: str, _value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS = {
    "__init__": _init,
    "__repr__": _repr,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
}
_METHODS_BY_VALUE = {"__eq__": _equal, "__hash__": _hash}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass
