"""The picture of the page: our figures beside those of real GPUs. Needs matplotlib."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scoreboard.score import Scored
from xmem.files.writing import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB = 1 << 30
_SMALLEST_ERROR = 1e-6  # where equal figures are drawn
_COLOURS = {
    "fakegpu": "tab:brown",
    "liger": "tab:blue",
    "megatron": "tab:red",
    "modded_nanogpt": "tab:orange",
    "peft": "tab:green",
    "timm": "tab:purple",
    "torchtitan": "black",
}
_VERDICTS = {"equal": "tab:green", "close": "gold", "off": "tab:red"}


def write_plot(scored: Sequence[Scored], path: Path) -> None:
    """Draw all figures that we have as an SVG file, the same one for the same figures.

    Raises:
        OSError: It cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    known = [one for one in scored if one.figure is not None]
    in_bytes = [one for one in known if one.row.quantity != "batch"]
    batches = [one for one in known if one.row.quantity == "batch"]
    with mpl.rc_context({"svg.hashsalt": "scoreboard", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        beside, shares, fits = figure.subplots(1, 3, width_ratios=(4, 4, 3))
        _beside(beside, in_bytes)
        _shares(shares, in_bytes)
        _fits(fits, batches)
        figure.suptitle(
            f"{len(known):,} memory figures of real GPUs, published by others, and ours without a GPU"
        )
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in drawn.getvalue().decode().splitlines()) + "\n"
    write_whole(path, text.encode())


def _beside(axes: Axes, scored: Sequence[Scored]) -> None:
    """Ours over theirs, on both sides of the line where they are equal."""
    for project, group in _by_project(scored):
        measured = [one.row.truth / _GIB for one in group]
        ours = [(one.figure or 0.0) / _GIB for one in group]
        axes.scatter(
            measured, ours, s=9, alpha=0.6, color=_COLOURS[project], label=f"{project} ({len(group)})"
        )
    ends = axes.get_xlim()
    axes.plot(ends, ends, linewidth=0.6, color="grey", zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="measured, GiB", ylabel="ours, GiB", title="Bytes")
    if scored:
        axes.legend(fontsize=7, frameon=False)


def _shares(axes: Axes, scored: Sequence[Scored]) -> None:
    """The share of a project's figures that is off by at most so much."""
    for project, group in _by_project(scored):
        off = [0.0 if one.verdict == "equal" else abs(one.error) for one in group]
        errors = np.sort(np.maximum(off, _SMALLEST_ERROR))
        share = np.arange(1, len(errors) + 1) / len(errors)
        axes.step([*errors, 1.0], [*share, 1.0], where="post", color=_COLOURS[project], label=project)
    axes.set(xscale="log", xlim=(_SMALLEST_ERROR, 1), ylim=(0, 1.02), title="Share of figures off by at most")
    ticks = {1e-6: "equal", 1e-4: "0.01%", 1e-3: "0.1%", 1e-2: "1%", 1e-1: "10%", 1.0: "100%"}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(alpha=0.3)


def _fits(axes: Axes, scored: Sequence[Scored]) -> None:
    """For each card, how often the largest batch is the same."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in scored:
        counts[f"{one.row.kind}\n{one.row.gpu}\ntorch {one.row.torch}"][one.verdict] += 1
    groups = sorted(counts)
    left = np.zeros(len(groups))
    for verdict, colour in _VERDICTS.items():
        shares = np.array([counts[group][verdict] / counts[group].total() for group in groups])
        axes.barh(
            groups,
            shares,
            left=left,
            color=colour,
            label={"equal": "the same", "close": "near"}.get(verdict, verdict),
        )
        left += shares
    for place, group in enumerate(groups):
        axes.annotate(f"{counts[group].total()}", (0.02, place), va="center", color="white")
    axes.set(xlim=(0, 1), title="timm: the largest batch that fits")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.tick_params(axis="y", labelsize=7)
    if scored:
        axes.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.3), frameon=False)


def _by_project(scored: Sequence[Scored]) -> list[tuple[str, list[Scored]]]:
    groups: dict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[one.row.project].append(one)
    return sorted(groups.items())
