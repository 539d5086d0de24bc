"""Values of the command line that need no conversion: texts, paths, and options that were not given.

typer converts with pydantic, which takes longer to import than everything else that a command line needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def pass_plain_values(parameters: Iterable[Any]) -> list[Any]:
    """Let parameters take texts and paths as they are, and absence as None (or as an empty tuple, of many
    values).

    That is what typer's conversion returns for them, and typer has the last word on everything else. Nothing
    changes for releases of typer that do not tell the type of a parameter.

    Returns:
        The same parameters.
    """
    found = list(parameters)
    for parameter in found:
        if hasattr(parameter, "type_descriptor") and "process_value" not in vars(parameter):
            parameter.process_value = _processing(parameter)
    return found


def _processing(parameter: Any) -> Callable[[Any, Any], Any]:
    convert, kind = parameter.process_value, _plain_kind(parameter)
    takes_many = parameter.multiple or parameter.nargs == -1

    def process_value(ctx: Any, value: Any) -> Any:
        is_absent = value is None and not parameter.required
        if not is_absent and (kind is None or type(value) is not str):
            return convert(ctx, value)
        plain = (() if takes_many else None) if is_absent or kind is None else kind(value)
        return plain if parameter.callback is None else parameter.callback(ctx, parameter, plain)

    return process_value


def _plain_kind(parameter: Any) -> type[str] | type[Path] | None:
    """Return what a text on the command line becomes; None where typer has more to do."""
    descriptor, asked = parameter.type_descriptor, parameter.type_descriptor.parameter_info
    if parameter.multiple or parameter.nargs != 1 or asked.parser is not None:
        return None
    if descriptor.annotation is str:
        return str
    # What a command cannot read or write, it says itself.
    looks = asked.exists or asked.resolve_path or not (asked.file_okay and asked.dir_okay)
    return Path if descriptor.annotation is Path and not looks else None
