"""Values of the command line that need no conversion: texts, and options that were not given.

typer converts with pydantic, which takes longer to import than everything else that a command line needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def pass_plain_values(parameters: Iterable[Any]) -> list[Any]:
    """Let parameters take texts as they are, and absence as None (or as an empty tuple, of many values).

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
    convert, descriptor = parameter.process_value, parameter.type_descriptor
    takes_many = parameter.multiple or parameter.nargs == -1
    takes_text = descriptor.annotation is str and parameter.nargs == 1 and not takes_many
    takes_text = takes_text and descriptor.parameter_info.parser is None

    def process_value(ctx: Any, value: Any) -> Any:
        is_absent = value is None and not parameter.required
        if not is_absent and not (takes_text and type(value) is str):
            return convert(ctx, value)
        plain = () if is_absent and takes_many else value
        return plain if parameter.callback is None else parameter.callback(ctx, parameter, plain)

    return process_value
