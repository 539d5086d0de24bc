"""Residuals of the scoreboard's figures, which intervals of estimates are made from, and how they hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from scoreboard.score import Scored
from xmem.estimation.calibration import ProjectResiduals, Residuals, parse, render
from xmem.files.package_data import read_data

WAY, KIND = "phantom", "other"
_HEADER = (
    "Truth over estimate, less 1, of runs that projects published, by way, kind, project and job: the\n"
    "lowest and the highest of each job. Rows whose cause lies in the measurement (causes.toml) are left\n"
    "out, and so are those whose estimate says that it depends on the speed of the GPU.\n"
    "Written by: python -m scoreboard --data FOLDER --jobs 0 --calibration FILE"
)


def residuals(scored: Sequence[Scored]) -> ProjectResiduals:
    """The residuals of all figures in bytes that say something of ours.

    None of these jobs leaves cuDNN's workspaces open, which is what the kinds of the calibration are about.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in scored:
        if one.figure is None or one.row.quantity == "batch" or one.whose == "theirs" or one.is_said:
            continue
        off = 0.0 if one.verdict == "equal" else one.row.truth / one.figure - 1
        found[one.row.project][one.row.job].append(off)
    return ProjectResiduals(
        {
            project: tuple((min(job), max(job)) for _, job in sorted(jobs.items()))
            for project, jobs in sorted(found.items())
        }
    )


def as_text(scored: Sequence[Scored]) -> str:
    """The calibration that comes with xmem."""
    return render({WAY: {KIND: residuals(scored)}}, _HEADER)


def holds(scored: Sequence[Scored], confidence: float) -> dict[str, tuple[int, int]]:
    """For each project how many of its jobs are inside of the bounds that all others give, and how many it
    has. The runs of the paper's authors are one of the projects.
    """
    authors = parse(read_data("calibration.toml"))[WAY][KIND]
    assert isinstance(authors, Residuals)
    return ProjectResiduals(residuals(scored).projects, authors).held_out(confidence)
