"""Plots of the scorecard: four quadrants as in the paper, and errors as boxes. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.errors import ConfigError
from xmem.validation.aggregate import grouped
from xmem.validation.metrics import Judged, MethodResult, summarize
from xmem.validation.scorecard import Scorecard

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_THRESHOLD = 0.2  # of both axes of the quadrants, as in the paper
_DPI = 120
_TICKS = (0, 5, 10, 15, 20, 50, 100)
_COLOURS = {"ours": "black", "xMem": "tab:blue", "DNNMem": "tab:red", "SchedTune": "tab:green"}
_OTHER_COLOURS = ("tab:purple", "tab:orange", "tab:brown", "tab:pink", "tab:olive", "tab:cyan", "tab:gray")
_MARKERS = "o^sDvP*X<>"


def require_matplotlib(option: str) -> None:
    """Check up front that plots can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(f"{option} needs matplotlib", "run pip install 'xmem-fast[plots]'")


def is_available() -> bool:
    """Return whether plots can be drawn."""
    return find_spec("matplotlib") is not None


def write_plots(card: Scorecard, folder: Path) -> list[Path]:
    """Write all plots as PNG files.

    Args:
        card: The scorecard to show.
        folder: Folder for the files; created if necessary.

    Returns:
        Their paths.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written to.
    """
    require_matplotlib(f"--plots {folder}")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, png in draw(card).items():
            path = folder / f"{name}.png"
            path.write_bytes(png)
            written.append(path)
    except OSError as error:
        raise ConfigError(f"--plots {folder} cannot be written to ({error.strerror})") from error
    return written


def draw(card: Scorecard) -> dict[str, bytes]:
    """Return all plots by name, as PNG; empty plots are left out."""
    methods = [card.ours, *card.others]
    plots = {
        "quadrants": _quadrants(methods),
        "errors_by_method": _boxes(
            {result.method: _percents(result.rows) for result in methods}, "Errors by method", absolute=True
        ),
        "errors_by_model": _boxes(
            {model: _percents(rows) for model, rows in grouped(card.ours.rows, "model").items()},
            "Our signed errors by model",
            absolute=False,
        ),
    }
    return {name: _png(figure) for name, figure in plots.items() if figure is not None}


def quadrant_points(result: MethodResult) -> dict[str, tuple[float, float]]:
    """Return the probability of failure and the median relative error of each model, as shares.

    Models all of whose runs failed have no error and are left out.
    """
    points = {}
    for model, rows in grouped(result.rows, "model").items():
        summary = summarize(rows)
        if summary.median_relative_error is not None and summary.failure_probability is not None:
            points[model] = (summary.failure_probability, summary.median_relative_error)
    return points


def _quadrants(methods: Sequence[MethodResult]) -> Figure | None:
    points = {result.method: quadrant_points(result) for result in methods}
    if not any(points.values()):
        return None
    figure, axes = _figure(8, 5.5)
    for number, (method, found) in enumerate(points.items()):
        if found:
            x, y = zip(*found.values(), strict=True)
            axes.scatter(
                [100 * value for value in x],
                [100 * value for value in y],
                label=method,
                color=_colour(method, number),
                marker=_MARKERS[number % len(_MARKERS)],
                alpha=0.75,
            )
    for line in (axes.axvline, axes.axhline):
        line(100 * _THRESHOLD, color="grey", linewidth=0.8, linestyle="--")
    for x_place, y_place, text in (
        (0.01, 0.01, "optimal"),
        (0.99, 0.01, "underestimation"),
        (0.01, 0.99, "overestimation"),
        (0.99, 0.99, "worst"),
    ):
        axes.text(
            x_place,
            y_place,
            text,
            transform=axes.transAxes,
            ha="left" if x_place < 0.5 else "right",
            va="bottom" if y_place < 0.5 else "top",
            color="grey",
        )
    axes.set_xlabel("probability of estimation failure, %")
    axes.set_ylabel("median relative error, %")
    axes.set_title("One point a model and method")
    axes.set_yscale("symlog", linthresh=100 * _THRESHOLD)
    axes.set_ylim(bottom=-1)
    axes.set_yticks(_TICKS, [str(tick) for tick in _TICKS])
    axes.minorticks_off()
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _boxes(groups: dict[str, list[float]], title: str, *, absolute: bool) -> Figure | None:
    shown = {
        name: [abs(value) for value in values] if absolute else values
        for name, values in groups.items()
        if values
    }
    if not shown:
        return None
    figure, axes = _figure(7, 1.2 + 0.32 * len(shown))
    positions = range(len(shown), 0, -1)
    axes.boxplot(list(shown.values()), positions=list(positions), orientation="horizontal", widths=0.6)
    axes.set_yticks(list(positions), [f"{name} ({len(values)})" for name, values in shown.items()])
    axes.set_xlabel("relative error, %" if absolute else "estimate over truth, less 1, %")
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_title(title)
    return figure


def _percents(rows: Sequence[Judged]) -> list[float]:
    return [100 * row.signed_error for row in rows if row.signed_error is not None]


def _colour(method: str, number: int) -> str:
    return _COLOURS.get(method, _OTHER_COLOURS[number % len(_OTHER_COLOURS)])


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    # Without pyplot, which keeps figures and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()
