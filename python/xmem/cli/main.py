"""``xmem-fast``: the list of commands, and the conversion of errors to exit statuses."""

from __future__ import annotations

import errno
import os
import reprlib
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from xmem import __version__
from xmem.cli.exit_codes import ExitCode
from xmem.cli.plain_values import pass_plain_values
from xmem.errors import ConfigError, XmemError
from xmem.printable import PrintableStream, printable

# In the order of the help. A command is a function in a module of its own name (`max-batch` in max_batch.py).
_NAMES = (
    "run", "capture", "estimate", "check", "diff", "fit", "max-batch", "gpus", "policies", "inspect",
    "replay", "tune", "advise", "sweep", "occupancy", "report", "validate", "schema", "phantom-env", "mcp",
)  # fmt: skip
_OF_SCRIPTS = ("run", "capture")


class _Imported(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for: most runs need one."""

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return _command(name)


@cache
def _command(name: str) -> Any:
    from xmem.cli.files_of_commands import Command

    function = name.replace("-", "_")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    # The command ends the options: what follows it belongs to the script, not to us.
    alone.command(name, cls=Command, context_settings={"allow_interspersed_args": name not in _OF_SCRIPTS})(
        getattr(import_module(f"xmem.cli.commands.{function}"), function)
    )
    return typer.main.get_command(alone)


@contextmanager
def _errors_as_statuses() -> Iterator[None]:
    """Turn what goes wrong into a message on stderr and an exit status.

    Raises:
        typer.Exit: Something went wrong.
    """
    try:
        try:
            with (
                redirect_stdout(PrintableStream(sys.stdout)),
                redirect_stderr(PrintableStream(sys.stderr)),
            ):
                yield
        finally:
            # Here, while it can still be handled: a closed pipe would otherwise show at interpreter exit.
            sys.stdout.flush()
    except XmemError as error:
        typer.echo(f"xmem-fast: {printable(str(error))}", err=True)
        usage = isinstance(error, ConfigError)
        raise typer.Exit(ExitCode.USAGE if usage else ExitCode.BAD_INPUT) from error
    except KeyboardInterrupt as error:
        typer.echo("xmem-fast: interrupted", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader is gone; buffered output must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.BROKEN_PIPE) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            if error.filename is None:
                raise
            named = f"{reprlib.repr(os.fspath(error.filename))} cannot be used ({error.strerror})"
            typer.echo(f"xmem-fast: {named}; check the path", err=True)
            raise typer.Exit(ExitCode.BAD_INPUT) from error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"xmem-fast: cannot write: {error.strerror}; free some space and run it again", err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from error


class _Commands(TyperGroup):
    """Commands whose exceptions become a message on stderr and an exit status."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: Any = _Imported()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with that of the help."""
        return pass_plain_values(super().get_params(ctx))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the options; the help and the version are printed here."""
        with _errors_as_statuses():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _errors_as_statuses():
            return super().invoke(ctx)


app = typer.Typer(
    name="xmem-fast",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    # Plain help and plain errors: boxes break messages that users want to read, copy and search for.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"xmem-fast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How much GPU memory will this PyTorch training job need? Known before it runs, without a GPU.

    Exit status: 0 fits or done, 1 would not fit (check: over; replay: differs), 2 usage, 3 bad input or
    failed capture.
    """


def _end(signal_number: int, _frame: object) -> None:
    os.write(2, f"xmem-fast: ended by {signal.Signals(signal_number).name}\n".encode())
    sys.exit(128 + signal_number)


def main() -> None:
    """Run the command line in ``sys.argv`` and exit with its status."""
    for ending in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # no SIGHUP on Windows
        # Like Ctrl-C: unwinding ends the captured command and removes its files.
        signal.signal(ending, _end)
    try:
        app(prog_name="xmem-fast")
    except Exception:
        traceback.print_exc()
        typer.echo("xmem-fast: this is a bug in xMem; please report it with the lines above", err=True)
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
