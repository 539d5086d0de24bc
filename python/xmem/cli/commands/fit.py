"""``xmem-fast fit``: a model of a script's memory at any size, from runs at a few small sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting
from xmem.cli.exit_codes import ExitCode
from xmem.cli.options import CaptureMode
from xmem.errors import ConfigError
from xmem.files.scratch import scratch_folder

if TYPE_CHECKING:
    from xmem.estimation.question import Question
    from xmem.scaling import Point, ScalingModel, Verification

_TOLERANCE = 0.005  # a held-out run may differ by this share of its peak

Dimensions = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=VALUE,...",
        help="Run the command with {NAME} replaced by each value: two or three small ones.",
    ),
]
Checks = Annotated[
    list[str] | None,
    typer.Option(
        "--check",
        metavar="POINT",
        help="Also run it here and compare: NAME=VALUE,..., or TRACE@NAME=VALUE,... for a trace.",
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE@NAME=VALUE... | -- COMMAND",
        help="Traces and their points, or with --dim a command: -- python train.py --batch-size {batch}",
        show_default=False,
    ),
]


def fit(
    runs: Runs,
    model: Annotated[
        Path, typer.Option("-o", "--output", metavar="MODEL", help="File to write the model to.")
    ],
    dim: Dimensions = None,
    check: Checks = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    mode: options.ModeChoice = CaptureMode.AUTO,
    no_gpu: options.NoGpu = False,
    python: options.Python = None,
    value: options.Values = None,
    cudnn: options.Cudnn = None,
    iterations: options.Iterations = 3,
    rank: options.Rank = None,
    world_size: options.WorldSize = None,
    ranks: options.Ranks = None,
    gpus_per_node: options.GpusPerNode = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Fit a model of a script's memory from runs at small sizes; ask it with estimate --at and max-batch.

    Exit status: 0 done, 1 a checked run differs by more than 0.5%, 2 usage, 3 bad input or failed capture.
    """
    from xmem.capture import Extent

    question = options.question(gpu, capacity)
    output.require_places({"-o": model})
    settings = CaptureSettings(
        mode=mode,
        no_gpu=no_gpu,
        python=python,
        values=tuple(value or ()),
        cudnn=cudnn,
        extent=Extent(iterations),
        rank=rank,
        world_size=world_size,
        ranks=ranks,
        gpus_per_node=gpus_per_node,
        timeout=timeout,
    )
    with scratch_folder() as folder:
        run_at = _Runner(runs if dim else None, settings, question, folder, as_json=as_json)
        fitted, verifications = _fit(runs, dim, check or [], model, run_at)
    if as_json:
        output.print_json(_contract(fitted, verifications, model))
    else:
        from xmem.reports.terminal.scaling import render_fit

        render_fit(fitted, verifications, str(model), output.console())
    off = any(abs(verification.relative_error) > _TOLERANCE for verification in verifications)
    raise typer.Exit(ExitCode.DIFFERS if off else ExitCode.DONE)


class _Runner:
    """Captures the command at points."""

    def __init__(
        self,
        command: list[str] | None,
        settings: CaptureSettings,
        question: Question,
        folder: Path,
        *,
        as_json: bool,
    ) -> None:
        self.command = command
        self._settings = settings
        self._question = question
        self._folder = folder
        self._as_json = as_json

    def __call__(self, point: Point) -> Path:
        """Return the trace of a run at a point.

        Raises:
            CaptureError: The script failed there.
            ConfigError: There is no command, or it does not hold a dimension.
        """
        from xmem.scaling import label, substitute

        if self.command is None:
            raise ConfigError(
                f"--check {label(point)} has no trace, and no command was given",
                "write TRACE@NAME=VALUE, or pass --dim and a command to run",
            )
        command = substitute(self.command, point)
        trace = self._folder / f"{'-'.join(f'{name}{value}' for name, value in point.items())}.json.gz"
        output.note(f"at {label(point)}")
        capture_noting(command, trace, self._settings, self._question, as_json=self._as_json)
        return trace


def _fit(
    runs: Sequence[str], dimensions: list[str] | None, checks: Sequence[str], path: Path, run_at: _Runner
) -> tuple[ScalingModel, list[Verification]]:
    from xmem.estimation.observation import observe
    from xmem.scaling import Sample, grid, parse_point, parse_values, read_model, verify, write_model

    # Input that may be invalid is read before the minutes that captures take.
    held_out = [_trace_at(text) if "@" in text else parse_point(text) for text in checks]
    if dimensions:
        named = [parse_values(text) for text in dimensions]
        if len(dict(named)) < len(named):
            raise ConfigError(
                f"{' '.join(f'--dim {text}' for text in dimensions)} repeats a dimension",
                "name each dimension once",
            )
        traces: list[tuple[Point, Path]] = [(point, run_at(point)) for point in grid(dict(named))]
    else:
        traces = [_trace_at(text) for text in runs]
    write_model(path, traces, run_at.command)
    fitted = read_model(path)
    verifications = []
    for held in held_out:
        point, trace = held if isinstance(held, tuple) else (held, run_at(held))
        verifications.append(verify(fitted, Sample(point, observe(trace))))
    return fitted, verifications


def _trace_at(text: str) -> tuple[Point, Path]:
    """Split ``trace.json.gz@batch=2`` into a point and a trace.

    Raises:
        ConfigError: It is not of that form, or there is no such file.
    """
    from xmem.scaling import parse_point

    trace, at, point = text.rpartition("@")
    if not at or not Path(trace).is_file():
        raise ConfigError(
            f"{text!r} does not name an existing trace and its point",
            "write TRACE@NAME=VALUE,..., or pass --dim and a command",
        )
    return parse_point(point), Path(trace)


def _contract(model: ScalingModel, verifications: Sequence[Verification], path: Path) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "path": str(path),
        "dimensions": list(model.dimensions),
        "samples": [dict(sample.point) for sample in model.samples],
        **model.summary(),
        "differences": [asdict(difference) for difference in model.differences],
        "checks": [
            {**asdict(verification), "relative_error": verification.relative_error}
            for verification in verifications
        ],
    }
