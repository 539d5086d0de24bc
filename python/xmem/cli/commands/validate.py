"""``xmem-fast validate``: the accuracy of estimates against measurements on real GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.text_table import format_table
from xmem.errors import ConfigError
from xmem.files.writing import naming, write_whole
from xmem.text.units import format_bytes

if TYPE_CHECKING:
    from xmem.validation import Measurement
    from xmem.validation.metrics import Judged, MethodResult
    from xmem.validation.scorecard import Scorecard

Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="With --list: results of bench/gpu; by default those of this checkout.",
        show_default=False,
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FILE.csv", help="Measured runs, in the columns of docs/accuracy.md."),
]
Estimates = Annotated[
    list[Path] | None,
    typer.Option(
        "--estimates",
        metavar="FILE",
        help="Estimates of these runs, .csv or .json; several files add up.",
    ),
]
Ways = Annotated[
    str | None,
    typer.Option(
        "--ways",
        metavar="NAME,...",
        help="Ways of estimating, the preferred one first: phantom, fake, cpu, fitted.",
    ),
]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write the scorecard as one offline page.")
]
Plots = Annotated[
    Path | None, typer.Option("--plots", metavar="FOLDER", help="Write its plots as PNG files.")
]
Explanations = Annotated[
    Path | None,
    typer.Option(
        "--explanations",
        metavar="FILE.toml",
        help="What is known of single rows, for the page.",
    ),
]
Confidence = Annotated[
    float, typer.Option("--confidence", metavar="SHARE", help="Confidence of each bound of the intervals.")
]


def validate(
    folder: Folder = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the available measurements.")] = False,
    runs: Runs = None,
    estimates: Estimates = None,
    ways: Ways = None,
    confidence: Confidence = 0.99,
    html: Html = None,
    plots: Plots = None,
    explanations: Explanations = None,
    as_json: options.Json = False,
) -> None:
    """Judge estimates against measured runs, or list the available measurements."""
    if as_list == (runs is not None):
        raise ConfigError("xmem-fast validate needs exactly one of --runs FILE.csv and --list")
    if runs is None:
        _list(folder, as_json)
        return
    if folder is not None:
        raise ConfigError(
            f"the folder {folder} cannot be combined with --runs", "pass a folder only with --list"
        )
    options.question(confidence=confidence)
    if plots is not None:
        from xmem.reports.accuracy.scorecard_plots import require_matplotlib

        require_matplotlib("--plots")
    if not estimates:
        raise ConfigError(
            "--runs needs estimates to judge",
            "pass --estimates FILE; in a checkout, `make accuracy RUNS=FILE.csv` makes them",
        )
    card = _score(runs, estimates, _way_names(ways), confidence)
    if plots is not None:
        from xmem.reports.accuracy.scorecard_plots import write_plots

        for path in write_plots(card, plots):
            output.note(f"wrote {path}")
    if html is not None:
        _write_page(card, html, explanations)
    if as_json:
        output.print_json(card.to_json())
    else:
        typer.echo(_text(card))


def _score(runs: Path, estimates: Iterable[Path], ways: tuple[str, ...], confidence: float) -> Scorecard:
    from xmem.validation.estimates import WAYS, read_estimates
    from xmem.validation.runs import read_runs
    from xmem.validation.scorecard import score

    measured = read_runs(runs)
    found = [row for path in estimates for row in read_estimates(path)]
    return score(measured, found, ways=ways or WAYS, confidence=confidence)


def _way_names(ways: str | None) -> tuple[str, ...]:
    from xmem.validation.estimates import WAYS

    if ways is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in ways.split(",") if name.strip()))
    if not names or set(names) - set(WAYS):
        raise ConfigError(f"--ways {ways} is invalid", f"use some of {', '.join(WAYS)}")
    return names


def _write_page(card: Scorecard, path: Path, explanations: Path | None) -> None:
    from xmem.reports.accuracy.explanations import read_explanations
    from xmem.reports.accuracy.scorecard_html import render_html

    explained = () if explanations is None else read_explanations(explanations)
    with naming(f"--html {path}"):
        write_whole(path, render_html(card, explained).encode())
    output.note(f"wrote {path}")


def _text(card: Scorecard) -> str:
    from xmem.validation.aggregate import worst_first

    parts = [
        format_table([_method_row(result) for result in (card.ours, *card.ways, *card.others)]),
        _interval_line(card),
    ]
    if card.ours.rows:
        parts.append(format_table([_judged_row(row) for row in worst_first(card.ours.rows)]))
    if card.ours.unanswered:
        lines = [f"{run.title}: {note or 'no estimate'}" for run, note in card.ours.unanswered]
        parts.append("\n".join(["without an estimate", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def _interval_line(card: Scorecard) -> str:
    lines = []
    kinds = {"calibrated as shipped": card.coverage, "calibrated on the other models": card.held_out}
    for name, found in kinds.items():
        lines.append(
            f"upper bounds at {found.confidence:.6g}, {name}: {_percent(found.safe)} of {found.rows} runs "
            f"are safe, {_percent(found.median_excess)} above the peak in the median"
        )
    return "\n".join(lines)


def _method_row(result: MethodResult) -> dict[str, object]:
    summary = result.summary
    return {
        "method": result.method,
        "runs": summary.runs,
        "median error": _percent(summary.median_relative_error),
        "95th": _percent(summary.p95_relative_error),
        "largest": _percent(summary.max_relative_error),
        "too low": summary.below_truth,
        "failures": summary.failures,
        "unproven": summary.failures_unproven,
        "PEF": _percent(summary.failure_probability),
        "OOM foreseen": f"{summary.ooms_foreseen}/{summary.real_ooms}",
        "false OOM": summary.false_ooms,
        "MCP": "-" if summary.conserved_bytes is None else format_bytes(round(summary.conserved_bytes)),
        "runtime": "-" if summary.median_seconds is None else f"{summary.median_seconds:.2f} s",
    }


def _judged_row(row: Judged) -> dict[str, object]:
    return {
        "run": row.run.title,
        "way": row.estimate.way,
        "estimate": format_bytes(row.estimate_bytes),
        "truth": "out of memory" if row.run.out_of_memory else format_bytes(row.run.peak_bytes),
        "error": "-" if row.signed_error is None else f"{row.signed_error:+.2%}",
        "verdict": "right" if row.verdict_is_right else "wrong",
        "second round": row.second_round.replace("_", " "),
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _list(folder: Path | None, as_json: bool) -> None:
    from xmem.validation import DEFAULT_FOLDER, load_measurements

    measurements = load_measurements(DEFAULT_FOLDER if folder is None else folder)
    if as_json:
        listed = [_fields(measurement) for measurement in measurements]
        output.print_json({"schema_version": 1, "measurements": listed})
    elif measurements:
        typer.echo(format_table([_row(measurement) for measurement in measurements]))
    output.note(f"{len(measurements)} measurements")


def _fields(measurement: Measurement) -> dict[str, Any]:
    return {
        "key": measurement.key,
        "part": measurement.part,
        "config": dict(measurement.config),
        "environment": dict(measurement.environment),
        "outcome": measurement.outcome,
        "peak_allocated_bytes": getattr(measurement, "peak_allocated_bytes", None),
        "peak_reserved_bytes": getattr(measurement, "peak_reserved_bytes", None),
        "least_bytes": getattr(measurement, "least_bytes", None),
        "where": measurement.where,
    }


def _row(measurement: Measurement) -> dict[str, str]:
    reserved = getattr(measurement, "peak_reserved_bytes", None)
    least = getattr(measurement, "least_bytes", None)
    return {
        "part": measurement.part,
        "run": measurement.title,
        "GPU": measurement.environment["gpu"],
        "torch": measurement.environment["torch"],
        "outcome": measurement.outcome,
        "reserved": "" if reserved is None else format_bytes(reserved),
        "least": "" if least is None else format_bytes(least),
    }
