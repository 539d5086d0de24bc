"""``xmem-fast capture``: profile an unmodified training script on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import options, output

if TYPE_CHECKING:
    from xmem.capture import CaptureResult


_STDERR = 2


def capture(
    command: options.Command,
    trace: Annotated[Path, typer.Option("-o", "--output", metavar="TRACE", help="Where the trace goes.")],
    iterations: options.Iterations = 3,
    timeout: options.Timeout = None,
    stacks: options.Stacks = False,
    as_json: options.Json = False,
) -> None:
    """Record a few iterations of a training script, on this machine and without a GPU."""
    result = capture_noting(
        command, trace, iterations=iterations, timeout=timeout, stacks=stacks, as_json=as_json
    )
    if as_json:
        output.print_json(
            {
                "schema_version": 1,
                "path": str(result.path),
                "iterations": result.iterations,
                "wall_s": result.wall_s,
                "exit_status": result.exit_status,
                "metadata": result.metadata,
            }
        )
    else:
        typer.echo(f"{result.path}: {result.iterations} iterations in {result.wall_s:.1f} s")


def capture_noting(
    command: list[str], trace: Path, *, iterations: int, timeout: float | None, stacks: bool, as_json: bool
) -> CaptureResult:
    """Capture, and note on stderr what is going on; the script prints there too where stdout is for JSON.

    Raises:
        CaptureError: The script failed, never trained, or the trace could not be written.
    """
    from xmem.capture import capture as capture_command

    output.note(f"recording {iterations} iterations on the CPU; the script's own output follows")
    result = capture_command(
        command,
        trace,
        iterations=iterations,
        timeout_s=timeout,
        stacks=stacks,
        stdout=_STDERR if as_json else None,
    )
    if result.iterations < iterations:
        output.note(f"the script ended after {result.iterations} of {iterations} iterations")
    return result
