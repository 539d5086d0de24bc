"""Encodes dataclasses as plain objects for JSON, and decodes them from these.

Texts that are decoded are one line each, without what would steer a terminal: names are shown in many places.
"""

from __future__ import annotations

import reprlib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xmem.printable import one_line

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_ATOMS = frozenset({str, int, float, bool, types.NoneType})
_NUMBERS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float)}


def encode(value: Any) -> Any:
    """Return what ``dataclasses.asdict`` makes of a dataclass, or of a value in one.

    Texts and numbers are not copied one by one: an answer has tens of thousands of them.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if is_dataclass(kind):
        return {name: encode(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Mapping):
        return {name: encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return kind(map(encode, value)) if kind in (list, tuple) else kind(*map(encode, value))
    return value


def decode(kind: Any, value: Any, path: str = "", *, skip_unknown: bool = False) -> Any:
    """Decode a plain value as an annotated type: a dataclass, ``tuple[T, ...]``, ``Mapping[str, T]``, ``T |
    None``, ``Literal``, ``list[Any]``, ``list[int]``, ``list[str]`` or a plain type.

    Args:
        kind: The type.
        value: The plain value, as JSON holds it.
        path: Its location, for the message.
        skip_unknown: Leave out what a dataclass has no field for, as a later version may write it.

    Raises:
        ValueError: The value does not fit; the message says where and what was expected.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        return _decoded_dataclass(kind, value, path, skip_unknown)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not types.NoneType)
        return decode(kind, value, path, skip_unknown=skip_unknown)
    if origin is list:
        _require(isinstance(value, list), "a list", value, path)
        _require_elements(arguments[0], value, path)
        return list(map(one_line, value)) if arguments[0] is str else value
    if origin is tuple:
        _require(isinstance(value, list | tuple), "a list", value, path)
        return tuple(
            decode(arguments[0], each, f"{path}[{index}]", skip_unknown=skip_unknown)
            for index, each in enumerate(value)
        )
    if origin is Mapping:
        _require(isinstance(value, Mapping), "an object", value, path)
        return {
            one_line(name): decode(arguments[1], each, f"{path}.{name}", skip_unknown=skip_unknown)
            for name, each in value.items()
        }
    if origin is Literal:
        _require(value in arguments, " or ".join(arguments), value, path)
        return value
    allowed = _NUMBERS.get(kind, (kind,))
    is_it = isinstance(value, allowed) and (kind is bool or not isinstance(value, bool))
    if kind is int and is_it:
        _require(_LEAST <= value <= _MOST, "a whole number of at most 64 bits", value, path)
    _require(
        is_it,
        {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind],
        value,
        path,
    )
    return one_line(value) if kind is str else value


def _require_elements(kind: Any, column: list[Any], path: str) -> None:
    """Check a column of whole numbers or texts at once; one of anything is not checked."""
    if kind is Any or not column:
        return
    wanted = {int: "whole numbers of at most 64 bits", str: "text"}[kind]
    fits = set(map(type, column)) == {kind}
    if not fits or (kind is int and not _LEAST <= min(column) <= max(column) <= _MOST):
        raise ValueError(f"{path} must hold only {wanted}")


def _decoded_dataclass(kind: Any, value: Any, path: str, skip_unknown: bool) -> Any:
    _require(isinstance(value, Mapping), "an object", value, path)
    hints = _hints(kind)
    unknown = [name for name in value if name not in hints]
    if unknown and not skip_unknown:
        raise ValueError(f"{_joined(path, unknown[0])} is not known")
    found = {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = decode(
                hints[field.name], value[field.name], _joined(path, field.name), skip_unknown=skip_unknown
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{_joined(path, field.name)} is missing")
    return kind(**found)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _require(is_it: bool, expected: str, value: Any, path: str) -> None:
    if not is_it:
        shown = reprlib.repr(value)
        raise ValueError(
            f"{path} must be {expected}, not {shown if len(shown) <= 40 else shown[:37] + '...'}"
        )
