"""``xmem-fast``: the list of commands, and the conversion of errors to exit statuses."""

from __future__ import annotations

import errno
import os
import reprlib
import signal
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from xmem.cli.commands.advise import advise
from xmem.cli.commands.capture import capture
from xmem.cli.commands.check import check
from xmem.cli.commands.diff import diff
from xmem.cli.commands.estimate import estimate
from xmem.cli.commands.fit import fit
from xmem.cli.commands.gpus import gpus
from xmem.cli.commands.inspect import inspect
from xmem.cli.commands.max_batch import max_batch
from xmem.cli.commands.mcp import mcp
from xmem.cli.commands.phantom_env import phantom_env
from xmem.cli.commands.policies import policies
from xmem.cli.commands.replay import replay
from xmem.cli.commands.report import report
from xmem.cli.commands.run import run
from xmem.cli.commands.sweep import sweep
from xmem.cli.commands.tune import tune
from xmem.cli.commands.validate import validate
from xmem.cli.exit_codes import ExitCode
from xmem.cli.files_of_commands import Command
from xmem.errors import ConfigError, XmemError
from xmem.printable import PrintableStream, printable


class _Commands(TyperGroup):
    """Commands whose exceptions become a message on stderr and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                with (
                    redirect_stdout(PrintableStream(sys.stdout)),
                    redirect_stderr(PrintableStream(sys.stderr)),
                ):
                    return super().invoke(ctx)
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
            typer.echo(
                f"xmem-fast: cannot write: {error.strerror}; free some space and run it again", err=True
            )
            raise typer.Exit(ExitCode.BAD_INPUT) from error


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
        from importlib import metadata  # it imports all of email

        typer.echo(f"xmem-fast {metadata.version('xmem-fast')}")
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


for _command in (
    run, capture, estimate, check, diff, fit, max_batch, gpus, policies, inspect, replay, tune, advise, sweep,
    report, validate, phantom_env, mcp,
):  # fmt: skip
    # The command ends the options: what follows it belongs to the script, not to us.
    app.command(cls=Command, context_settings={"allow_interspersed_args": _command not in (run, capture)})(
        _command
    )


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
