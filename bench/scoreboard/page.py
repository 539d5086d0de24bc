"""The page of the documentation that shows every figure's place: ``docs/scoreboard.md``."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from scoreboard import rivals
from scoreboard.calibration import holds
from scoreboard.plot import write_plot
from scoreboard.score import Scored
from xmem.devices.gpus import find_device
from xmem.files.writing import write_whole

_LARGE = 0.01
_NEAR = {"allocated": 0.001, "reserved": 0.01}
_GIB = 1 << 30

_HEAD = """# Scoreboard

Figures that others measured on real GPUs and published, and what the phantom GPU says of the same jobs. Each
job is the project's own script at the commit that its figure came with, on a machine without a GPU. All that
differs is how often it repeats what it measures, that weights and data are made up in the same sizes, that
Liger's kernels are not optimized once they are PTX, and that FlashAttention 3 has no kernels.
Written by `make scoreboard`; do not edit. `bench/scoreboard/README.md` says how to rebuild it, and how to add
a row.

The 77 measured runs of the xMem paper's authors, with all other estimators beside us, are in
[Accuracy](accuracy.md).

*Equal*: all published digits are the same (bytes to 1 KiB, batches exactly). *Error*: ours less theirs, over
theirs. *Rebuilt*: the release of torch and the code of the measurement can be had.

![Ours beside the published figures]({picture})
"""


def write_page(scored: Sequence[Scored], page: Path, version: str) -> None:
    """Write the tables of all rows, and beside the page its picture, a file of the same name with ``.svg``.

    Args:
        scored: The rows.
        page: The file.
        version: Of the sources that are there now; figures of others are counted.

    Raises:
        OSError: The page cannot be written.
    """
    picture = page.with_suffix(".svg")
    write_plot(scored, picture)
    head = _HEAD.format(picture=picture.name)
    bytes_rows = [one for one in scored if one.row.quantity != "batch"]
    batch_rows = [one for one in scored if one.row.quantity == "batch"]
    known = [one for one in scored if one.figure is not None]
    if older := sum(one.version != version for one in known):
        text = f"{head}\n{older} of the {len(known)} figures of ours were made by earlier versions of xMem.\n"
    else:
        text = head
    if bytes_rows:
        text += "\n## Bytes\n\n" + _bytes_table(bytes_rows)
    repeated = _repeated(bytes_rows)
    if repeated:
        text += "\n## Runs that were repeated\n\n" + _REPEATS + _repeats_table(repeated)
    predicted = [one for one in scored if one.row.rival is not None and one.figure is not None]
    if predicted:
        text += "\n## Beside the publisher's own estimator\n\n" + _rival_table(predicted)
    if batch_rows:
        text += "\n## The largest batch that fits\n\n" + _BATCHES + _batch_table(batch_rows)
        text += "\n" + _RELEASES + _release_table(batch_rows)
        text += "\n" + _RIVALS + _verdict_table(batch_rows)
    if bytes_rows:
        text += "\n## Intervals\n\n" + _INTERVALS + _interval_table(scored)
    text += "\n## What differs by more than 1%, and why\n\n" + _differences(scored)
    text += "\n## What gave no figure\n\n" + _without(scored)
    write_whole(page, text.encode())


_MANY_NEAR, _NEARLY_ALL = 10, 0.9  # where near batches say something of the card

_BATCHES = """timm's own benchmark begins with a large batch and takes a smaller one after each failure. On a
phantom GPU of the card's size, it finds a batch itself. *Near*: another one than was published, but the
same with 2% less or 2% more memory, so the verdict hangs on the last 2% of the card.

"""

_REPEATS = """Projects publish several runs of one script, and the runs differ among themselves: by what
the data held, by how far the GPU was behind, and perhaps by what an earlier run had compiled. An estimate
has one figure for all of them. *Near*: within 0.1% where the figure is allocated bytes, within 1% where it
is reserved. *Reachable*: how many rows could be near at best, with one figure for each job. *Between*: jobs
where ours lies between the smallest and the largest run, or near one of them.

"""

_INTERVALS = """Estimates of jobs without convolutions get their interval from these figures, each project
with the same weight, and from the runs of the paper's authors (`xmem_paper`), which no bound is narrower than
(`python/xmem/estimation/calibration.py`). Below, the interval for the jobs of each project is made from all
others. Rows whose cause is theirs are left out, and so are those whose estimate says that it depends on the
speed of the GPU. Most figures of the others are equal to the byte, so bounds made from them alone are too
narrow for the authors' runs: hence the floor.

"""
_CONFIDENCES = (0.9, 0.99)


def _interval_table(scored: Sequence[Scored]) -> str:
    lines = [
        "| project | jobs | " + " | ".join(f"inside at {confidence:g}" for confidence in _CONFIDENCES) + " |",
        "| --- | --: " + "| --: " * len(_CONFIDENCES) + "|",
    ]
    held = [holds(scored, confidence) for confidence in _CONFIDENCES]
    for project in sorted(held[0]):
        shares = [f"{of[project][0]} ({of[project][0] / of[project][1]:.0%})" for of in held]
        lines.append(f"| {project} | {held[0][project][1]} | {' | '.join(shares)} |")
    means = [f"{np.mean([inside / jobs for inside, jobs in of.values()]):.1%}" for of in held]
    lines.append(f"| mean of projects | | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


_RELEASES = """How much a release matters: the published batches of one model with two releases, on cards
whose memory is the same within 2%.

"""
_RIVALS = """The other estimators of [Accuracy](accuracy.md) take a model and a batch, so they can answer
about timm's training jobs (`bench/scoreboard/rivals.py`). Each was asked whether the published batch fits,
and whether the next larger one does, which ran out of memory. *Right*: it says yes, and no. Only MemTracker
knows of mixed precision.

"""


def _bytes_table(scored: Iterable[Scored]) -> str:
    lines = [
        "| project | what | rows | left out | scored | equal | in 0.1% | in 1% | median | 95th | most |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for (project, kind, quantity), group in _grouped(
        scored, lambda one: (one.row.project, one.row.kind, one.row.quantity)
    ):
        known = [one for one in group if one.figure is not None]
        errors = np.abs([one.error for one in known])
        lines.append(
            f"| {project} | {kind}, {quantity} | {len(group)} | {_count(group, 'left out')} "
            f"| {len(known)} | "
            + " | ".join(
                [
                    _share(one.verdict == "equal" for one in known),
                    _share(errors <= 0.001),
                    _share(errors <= 0.01),
                    *(_percent(value) for value in _quantiles(errors)),
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def _repeated(scored: Iterable[Scored]) -> list[tuple[tuple[Any, ...], list[Scored]]]:
    """The rows of jobs of which several runs were published, by job and quantity."""
    known = [one for one in scored if one.figure is not None]
    groups = _grouped(
        known, lambda one: (one.row.project, one.row.kind, one.row.quantity, one.row.job, one.row.item)
    )
    return [(key, group) for key, group in groups if len(group) > 1]


def _repeats_table(repeated: Iterable[tuple[tuple[Any, ...], list[Scored]]]) -> str:
    lines = [
        "| project | what | jobs | rows | reachable | near | between | most the runs differ |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    by_kind: dict[tuple[Any, ...], list[list[Scored]]] = defaultdict(list)
    for (project, kind, quantity, _, _), group in repeated:
        by_kind[project, kind, quantity].append(group)
    for (project, kind, quantity), groups in by_kind.items():
        near = _NEAR[quantity]
        truths = [sorted(one.row.truth for one in group) for group in groups]
        rows = sum(map(len, truths))
        reachable = sum(reachable_by_one_figure(runs, near) for runs in truths)
        ours = sum(abs(one.error) <= near for group in groups for one in group)
        between = [
            runs[0] * (1 - near) <= (group[0].figure or 0) <= runs[-1] * (1 + near)
            for runs, group in zip(truths, groups, strict=True)
        ]
        spread = max(runs[-1] / runs[0] - 1 for runs in truths)
        lines.append(
            f"| {project} | {kind}, {quantity} | {len(groups)} | {rows} "
            f"| {reachable} ({reachable / rows:.0%}) | {ours} ({ours / rows:.0%}) "
            f"| {_share(between)} | {_percent(spread)} |"
        )
    return "\n".join(lines) + "\n"


def reachable_by_one_figure(runs: Sequence[float], near: float) -> int:
    """Return how many of some figures one figure can be near to at best.

    Args:
        runs: Figures, ascending.
        near: The error that is still near, as a share of the figure.
    """
    return max(
        sum(run * (1 - near) <= least * (1 + near) for run in runs[at:]) for at, least in enumerate(runs)
    )


def _rival_table(scored: Iterable[Scored]) -> str:
    lines = ["| project | job | measured | theirs | ours |", "| --- | --- | --: | --: | --: |"]
    for one in sorted(scored, key=lambda one: one.row.job):
        row = one.row
        theirs = _signed((row.rival or math.nan) / row.truth - 1)
        ours = "equal" if one.verdict == "equal" else _signed(one.error)
        lines.append(f"| {row.project} | {row.job} | {row.truth / _GIB:.3f} GiB | {theirs} | {ours} |")
    return "\n".join(lines) + "\n"


def _batch_table(scored: Sequence[Scored]) -> str:
    lines = [
        "| project | what | card | torch then | here | rows | scored | the same | near | larger | smaller |",
        "| --- | --- | --- | --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for key, group in _grouped(
        scored, lambda one: (one.row.project, one.row.kind, one.row.gpu, one.row.torch, one.row.is_rebuilt)
    ):
        project, kind, gpu, torch, is_rebuilt = key
        known = [one for one in group if one.figure is not None]
        off = [one for one in known if one.verdict == "off"]
        lines.append(
            f"| {project} | {kind} | {gpu} | {torch} | {'the same' if is_rebuilt else 'another'} "
            f"| {len(group)} | {len(known)} | {_share(one.verdict == 'equal' for one in known)} | "
            f"{_share(one.verdict == 'close' for one in known)} | "
            f"{_share(one in off and one.error > 0 for one in known)} | "
            f"{_share(one in off and one.error < 0 for one in known)} |"
        )
    return "\n".join([*lines, *_less_free(scored)]) + "\n"


def _less_free(scored: Iterable[Scored]) -> Iterator[str]:
    """Name the cards on which the runs that nearly hang on the card's size all had less of it than ours."""
    for (gpu,), group in _grouped(scored, lambda one: (one.row.gpu,)):
        near = [one for one in group if one.verdict == "close"]
        larger = sum(one.error > 0 for one in near)
        if len(near) >= _MANY_NEAR and larger >= _NEARLY_ALL * len(near):
            yield (
                f"\nOn the {gpu}, {larger} of {len(near)} that are near are larger than published, "
                "and as published with 2% less memory:\nless of the card was free than on the phantom, "
                "as beside a desktop or with a larger CUDA context than is assumed."
            )


def _release_table(scored: Iterable[Scored]) -> str:
    groups: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for one in scored:
        row = one.row
        groups[row.kind, row.gpu, row.torch][row.job.partition("/")[2]] = row.truth
    lines = [
        "| what | with | and with | models | the same | larger | smaller |",
        "| --- | --- | --- | --: | --: | --: | --: |",
    ]
    for (one, first), (other, second) in combinations(sorted(groups.items(), key=lambda item: item[0]), 2):
        kind, gpu, torch = one
        both = [(first[model], second[model]) for model in first if model in second]
        if kind != other[0] or torch == other[2] or not both or not _as_large(gpu, other[1]):
            continue
        lines.append(
            f"| {kind} | torch {torch}, {gpu} | torch {other[2]}, {other[1]} | {len(both)} | "
            f"{_share(a == b for a, b in both)} | {_share(b > a for a, b in both)} | "
            f"{_share(b < a for a, b in both)} |"
        )
    return "\n".join(lines) + "\n"


def _as_large(gpu: str, other: str) -> bool:
    sizes = [find_device(name).total_memory_bytes for name in (gpu, other)]
    return max(sizes) <= 1.02 * min(sizes)


def _verdict_table(scored: Sequence[Scored]) -> str:
    lines = [
        "| estimator | rows | answered | right | too large | too small |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    said = rivals.read()
    asked = {one.job for one in said}
    ours = [one for one in scored if one.row.job in asked and one.figure is not None]
    if not ours:
        return ""
    lines.append(
        f"| xMem | {len(ours)} | {len(ours)} | {sum(one.verdict == 'equal' for one in ours)} "
        f"| {sum(one.error > 0 for one in ours)} | {sum(one.error < 0 for one in ours)} |"
    )
    lines += [
        f"| {found.method} | {found.rows} | {found.answered} | {found.right} "
        f"| {found.too_large} | {found.too_small} |"
        for found in rivals.judge([one.row for one in ours], said)
    ]
    silent = Counter((one.method, one.note) for one in said if one.peak_bytes is None)
    lines += [
        "",
        *(f"- {method}, no answer: {note} ({count})" for (method, note), count in sorted(silent.items())),
    ]
    return "\n".join(lines) + "\n"


def _differences(scored: Iterable[Scored]) -> str:
    off = [one for one in scored if one.verdict == "off" and abs(one.error) > _LARGE]
    if not off:
        return "Nothing.\n"
    lines = ["| project | job | rows | errors | whose | cause |", "| --- | --- | --: | --- | --- | --- |"]
    for (project, job, whose, cause), group in _grouped(
        off, lambda one: (one.row.project, one.row.job, one.whose, one.cause)
    ):
        errors = [one.error for one in group]
        span = _signed(errors[0]) if len(group) == 1 else f"{_signed(min(errors))} to {_signed(max(errors))}"
        lines.append(
            f"| {project} | {job} | {len(group)} | {span} | {whose or 'unknown'} | {cause or 'unknown'} |"
        )
    return "\n".join(lines) + "\n"


def _without(scored: Iterable[Scored]) -> str:
    without = [one for one in scored if one.figure is None]
    if not without:
        return "Nothing.\n"
    lines = ["| project | rows | why |", "| --- | --: | --- |"]
    for (project, why), group in _grouped(without, lambda one: (one.row.project, _why(one))):
        lines.append(f"| {project} | {len(group)} | {why} |")
    return "\n".join(lines) + "\n"


def _why(one: Scored) -> str:
    if one.verdict == "left out":
        return one.cause
    if one.verdict == "not run":
        return "not run yet"
    return next(iter(one.problem.strip().splitlines()), "no reason known")[:160].replace("|", "/")


def _grouped(
    scored: Iterable[Scored], key: Callable[[Scored], tuple[Any, ...]]
) -> list[tuple[tuple[Any, ...], list[Scored]]]:
    groups: dict[tuple[Any, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        groups[key(one)].append(one)
    return sorted(groups.items(), key=lambda item: [str(part) for part in item[0]])


def _count(scored: Iterable[Scored], verdict: str) -> int:
    return sum(one.verdict == verdict for one in scored)


def _share(flags: Iterable[object]) -> str:
    values = [bool(flag) for flag in flags]
    return f"{sum(values)} ({sum(values) / len(values):.0%})" if values else "-"


def _quantiles(errors: np.ndarray) -> tuple[float, float, float]:
    if not len(errors):
        return (math.nan,) * 3
    return float(np.median(errors)), float(np.quantile(errors, 0.95)), float(errors.max())


def _percent(value: float) -> str:
    if math.isnan(value):
        return "-"
    return "0" if value == 0 else f"{value:.2%}" if value >= 0.00005 else "under 0.01%"


def _signed(value: float) -> str:
    return f"{value:+.2%}"
