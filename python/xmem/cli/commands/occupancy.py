"""``xmem-fast occupancy``: how busy the multiprocessors of a GPU will be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting, trace_path
from xmem.cli.options import CaptureMode
from xmem.cli.text_table import format_table
from xmem.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xmem.occupancy.averages import Average
    from xmem.occupancy.summary import Occupancy, Row

_MOST_ROWS = 15
_MOST_OF_A_NAME = 80

Asked = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRACE | -- COMMAND",
        help="A trace with kernels, or the command to run on a phantom GPU, such as: python infer.py",
        show_default=False,
    ),
]
Sweep = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="NAME=VALUE,...",
        help="Run the command once for each value, which takes the place of {NAME} in it.",
    ),
]
KeepTrace = Annotated[
    Path | None, typer.Option("--keep-trace", metavar="FILE", help="Keep the trace of the command.")
]
ByRows = Annotated[
    int, typer.Option("--rows", metavar="N", min=0, help="Rows of each table; JSON always has all.")
]
WholeRun = Annotated[
    bool,
    typer.Option("--whole-run", help="Count all launches of the command, not those of its last iteration."),
]


def occupancy(
    asked: Asked = None,
    gpu: options.Gpu = None,
    python: options.Python = None,
    iterations: options.Iterations = 3,
    calls: options.Calls = 0,
    timeout: options.Timeout = None,
    whole_run: WholeRun = False,
    sweep: Sweep = None,
    keep_trace: KeepTrace = None,
    rows: ByRows = _MOST_ROWS,
    as_json: options.Json = False,
) -> None:
    """Report how full the kernels of a script or a trace keep a GPU's multiprocessors, and what limits it."""
    if not asked:
        raise typer.BadParameter("name a trace, or pass a command after --, such as: -- python infer.py")
    typed = list(asked)
    output.require_places({"--keep-trace": keep_trace})
    if sweep is None and python is None and len(typed) == 1 and _is_trace(typed[0]):
        found = _of_trace(typed[0], gpu, whole_run)
        _give(found, rows, as_json)
        return
    runner = _Runner(gpu, python, iterations, calls, timeout, whole_run, as_json)
    if sweep is None:
        _give(runner.run(typed, keep_trace), rows, as_json)
        return
    name, values = _sweep_values(sweep, typed)
    answers = []
    for value in values:
        output.note(f"{name}={value}")
        answers.append((value, runner.run([word.replace(f"{{{name}}}", value) for word in typed], None)))
    _give_sweep(name, answers, as_json)


def _is_trace(word: str) -> bool:
    """Return whether a lone word names a trace, even one that is not there; else it is a command."""
    if word.endswith(".py"):
        return False
    return word == "-" or "://" in word or Path(word).is_file() or shutil.which(word) is None


class _Runner:
    """Runs commands on the phantom GPU, all with the same options."""

    def __init__(
        self,
        gpu: str | None,
        python: Path | None,
        iterations: int,
        calls: int,
        timeout: float | None,
        whole_run: bool,
        as_json: bool,
    ) -> None:
        from xmem.capture import Extent

        self._question = options.question(gpu)
        self._whole_run = whole_run
        self._as_json = as_json
        self._settings = CaptureSettings(
            mode=CaptureMode.PHANTOM,
            no_gpu=True,
            python=python,
            extent=Extent(iterations, calls=calls),
            timeout=timeout,
            launches=True,
        )

    def run(self, command: list[str], keep_trace: Path | None) -> Occupancy:
        with trace_path(keep_trace) as trace:
            capture_noting(command, trace, self._settings, self._question, as_json=self._as_json)
            return _of_trace(str(trace), None, self._whole_run)


def _of_trace(path: str, gpu: str | None, whole_run: bool) -> Occupancy:
    """Return the occupancy of a trace of ours, or of one that a profiler made on a GPU.

    Raises:
        TraceError: It does not say what was launched.
        ConfigError: The GPU is unknown, or is not the one whose code the trace knows.
    """
    from xmem.devices.gpus import find_device
    from xmem.occupancy.profiled import profiled_launches
    from xmem.occupancy.recorded import launches_of, of_last_iteration
    from xmem.occupancy.summary import occupancy_of
    from xmem.trace.trace import read_trace

    trace = None if path == "-" else read_trace(path)
    if trace is not None and trace.is_captured:
        launches = launches_of(trace)
        notes = trace.notes.launches
        assert notes is not None
        if notes.dropped:
            output.note(f"{notes.dropped:,} later launches were not written down")
        if not whole_run:
            launches = of_last_iteration(trace, launches)
        name, capability, count = notes.gpu, notes.compute_capability, notes.multiprocessors
    else:
        launches, profiled = profiled_launches(path)
        name, count = profiled.name, profiled.multiprocessors
        capability = profiled.compute_capability or ()
    if gpu is not None:
        device = find_device(gpu)
        if capability and device.compute_capability != tuple(capability):
            raise ConfigError(
                f"the trace has the code for compute capability {capability[0]}.{capability[1]}, "
                f"which {device.name} does not run",
                "run the command again with this --gpu",
            )
        name, count = device.name, device.multiprocessors
        capability = device.compute_capability or ()
    if len(capability) != 2 or count < 1:
        raise ConfigError("the trace does not say which GPU it is of", "name it with --gpu")
    return occupancy_of(launches, name, (capability[0], capability[1]), count)


def _sweep_values(sweep: str, command: Sequence[str]) -> tuple[str, list[str]]:
    name, _, listed = sweep.partition("=")
    values = [value for value in listed.split(",") if value]
    if not name or not values:
        raise ConfigError(f"--sweep {sweep} is invalid", "write NAME=VALUE,..., such as batch=8,16,32")
    if not any(f"{{{name}}}" in word for word in command):
        raise ConfigError(
            f"the command has no {{{name}}}",
            f"put {{{name}}} where the value belongs, such as --{name} {{{name}}}",
        )
    return name, values


def _give(found: Occupancy, rows: int, as_json: bool) -> None:
    if as_json:
        output.print_json(found.document())
        return
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items() if count)
    capability = ".".join(map(str, found.compute_capability))
    typer.echo(f"{found.gpu} (compute capability {capability}, {found.multiprocessors} multiprocessors)")
    typer.echo(f"{found.launches:,} launch{'es' * (found.launches != 1)}: {counts}")
    for name, mean in _means(found):
        if mean is not None:
            typer.echo(f"{name:19} {mean.value:6.1%}  ({mean.low:.1%} to {mean.high:.1%})")
    for title, table in (("kernel", found.kernels), ("operator", found.operators), ("module", found.modules)):
        if rows and any(row.name for row in table):
            typer.echo()
            typer.echo(format_table([_shown(title, row) for row in table[:rows]]))
            if len(table) > rows:
                typer.echo(f"and {len(table) - rows:,} more; --json has all")


def _means(found: Occupancy) -> list[tuple[str, Average | None]]:
    means = found.means
    return [
        ("launch_mean", means.launch_mean),
        ("launch_mean_active", means.launch_mean_active),
        ("time_mean", means.time_mean),
        ("wall_mean", means.wall_mean),
    ]


def _shown(title: str, row: Row) -> dict[str, object]:
    unknown = row.limiter == "unknown"
    name = row.name if len(row.name) <= _MOST_OF_A_NAME else f"{row.name[: _MOST_OF_A_NAME - 3]}..."
    return {
        title: name or "(outside of any)",
        "launches": row.launches,
        "theoretical": "-" if unknown else f"{row.theoretical:.1%}",
        "mean": "-" if unknown else f"{row.launch_mean:.1%}",
        "limited by": "-" if unknown else row.limiter.replace("_", " "),
        "registers": None if row.registers < 0 else row.registers,
        "shared bytes": None if row.shared_bytes < 0 else row.shared_bytes,
        "known": row.known,
    }


def _give_sweep(name: str, answers: list[tuple[str, Occupancy]], as_json: bool) -> None:
    if as_json:
        from xmem.occupancy.summary import SCHEMA_VERSION

        runs = [{name: value, **found.document()} for value, found in answers]
        output.print_json({"schema_version": SCHEMA_VERSION, "sweep": name, "runs": runs})
        return
    table = [
        {
            name: value,
            "launches": found.launches,
            "unknown": found.counts["unknown"],
            "launch_mean": f"{found.means.launch_mean.value:.1%}",
            "launch_mean_active": f"{found.means.launch_mean_active.value:.1%}",
            "": "#" * round(40 * found.means.launch_mean.value),
        }
        for value, found in answers
    ]
    typer.echo(format_table(table))
