"""JSON Schemas of annotated types: what ``dataclasses.asdict`` and ``json`` make of them.

Schemas are of draft 2020-12. Objects may have more keys than are listed, as a later version may write them.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}
_ATTRIBUTE = re.compile(r"^(\w+): ", re.MULTILINE)


def schema_of(kind: Any, *, computed: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the schema of a dataclass or a ``TypedDict``, with everything that it refers to in ``$defs``.

    ``Annotated[T, Kind]`` has the schema of ``Kind``, for values that type checkers know as plain objects.

    Args:
        kind: The type.
        computed: Names of properties that are written beside the fields of dataclasses that have them.

    Raises:
        TypeError: A type has no schema.
    """
    definitions: dict[str, Any] = {}
    root = _schema(kind, definitions, computed)
    own = definitions.pop(root["$ref"].rpartition("/")[2])
    return {"$schema": DIALECT, **own, **({"$defs": definitions} if definitions else {})}


def _schema(kind: Any, definitions: dict[str, Any], computed: frozenset[str]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)

    def of(each: Any) -> dict[str, Any]:
        return _schema(each, definitions, computed)

    if kind in (Any, object):
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Annotated:
        return of(arguments[1])
    if origin in (NotRequired, Required):
        return of(arguments[0])
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if each is types.NoneType else of(each) for each in arguments]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        exact = {"minItems": len(arguments), "maxItems": len(arguments)}
        return {"type": "array", "prefixItems": [of(each) for each in arguments], **exact}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": of(arguments[0])}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": of(arguments[1])}
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    if is_typeddict(kind) or (is_dataclass(kind) and isinstance(kind, type)):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # it may refer to itself
            definitions[kind.__name__] = _object(kind, definitions, computed)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"{kind} has no JSON schema")


def _object(kind: Any, definitions: dict[str, Any], computed: frozenset[str]) -> dict[str, Any]:
    words, meanings = _documented(kind)
    hints = get_type_hints(kind, include_extras=True)
    # Not ``__required_keys__``, which does not see through annotations that are texts.
    needed = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
    for name in sorted(computed):
        if isinstance(found := getattr(kind, name, None), property):
            hints[name] = get_type_hints(found.fget)["return"]
            meanings.setdefault(name, _text(inspect.getdoc(found) or ""))
    properties = {}
    for name, hint in hints.items():
        described = {"description": meanings[name]} if meanings.get(name) else {}
        properties[name] = {**_schema(hint, definitions, computed), **described}
    required = [name for name in properties if name in needed or name in computed]
    return {
        "title": kind.__name__,
        **({"description": words} if words else {}),
        "type": "object",
        "properties": properties,
        "required": required,
    }


def _documented(kind: Any) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a class, and of each of its attributes."""
    text = inspect.cleandoc(kind.__doc__ or "")
    head, _, attributes = text.partition("\nAttributes:\n")
    parts = _ATTRIBUTE.split(inspect.cleandoc(attributes))
    return _text(head), {name: _text(words) for name, words in zip(parts[1::2], parts[2::2], strict=True)}


def _text(words: str) -> str:
    return " ".join(words.replace("``", "").split())
