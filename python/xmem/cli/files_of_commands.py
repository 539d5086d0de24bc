"""The files that a command line names: what a command writes must be none of those that it reads.

One check for all commands, before any of them begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from xmem.cli.plain_values import pass_plain_values
from xmem.errors import ConfigError

_OUTPUTS = frozenset(("-o", "--html", "--keep-trace", "--snapshot"))


class Command(TyperCommand):
    """A command that refuses to write over its own input, or two results to one file."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with that of the help."""
        return pass_plain_values(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Check the files, then run the command."""
        for text in _texts(list(ctx.params.values())):
            if "\0" in text:  # from a program: no shell passes one
                raise ConfigError(f"{text} holds a NUL character", "no name and no value has one")
        require_apart(self, ctx.params)
        return super().invoke(ctx)


def require_apart(command: TyperCommand, values: dict[str, Any]) -> None:
    """Check that the files that a command writes are none of its other files.

    Args:
        command: The command, whose parameters say which are outputs.
        values: What the command line gave, by the name of the parameter.

    Raises:
        ConfigError: A file would be read and written, or written twice; also through a link.
    """
    outputs: dict[str, Path] = {}
    inputs: list[tuple[str, Path]] = []
    for parameter in command.params:
        option = next((each for each in parameter.opts if each in _OUTPUTS), None)
        value = values.get(parameter.name or "")
        if option is None:
            inputs += [(text, path) for text in _texts(value) for path in _paths(text)]
        elif isinstance(value, str | Path) and str(value) != "-":
            outputs[option] = Path(value)
    for option, output in outputs.items():
        for text, path in inputs:
            require_other_file(option, output, path, text)
        for other, second in outputs.items():
            if option < other and (_same(output, second) or output.absolute() == second.absolute()):
                raise ConfigError(f"{option} and {other} name the same file, {output}", "name two files")


def require_other_file(option: str, output: Path, read: Path, text: str | None = None) -> None:
    """Check that a file that a command writes is not one that it reads.

    Args:
        option: The option that names the output.
        output: The file to write.
        read: A file that the command reads.
        text: What the command line says for ``read``, if that is more than its name.

    Raises:
        ConfigError: They are the same regular file; also through a link.
    """
    if _same(output, read):
        raise ConfigError(
            f"{option} {output} would overwrite {text or read}, which the command reads", "name another file"
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _paths(text: str) -> Iterator[Path]:
    """Yield the files that an argument may name: by itself, as NAME=FILE, or as FILE@NAME=VALUE."""
    for name in {text, text.partition("=")[2], text.rpartition("@")[0]} - {"", "-"}:
        yield Path(name)


def _same(one: Path, other: Path) -> bool:
    """Return whether two names are those of one regular file; devices and pipes have no contents to lose."""
    try:
        return one.samefile(other) and one.is_file()
    except (OSError, ValueError):  # one of them does not exist, or is no name of a file
        return False
