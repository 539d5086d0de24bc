"""How far our figure is from the published one, and why."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from typing import Literal

from scoreboard.answers import Answers
from scoreboard.laboratory import HERE
from scoreboard.rows import Row

Verdict = Literal["equal", "off", "close", "failed", "not run", "left out"]
Whose = Literal["ours", "theirs", "unknown", ""]


@dataclass(frozen=True)
class Scored:
    """A row with our figure.

    Attributes:
        row: The published figure.
        figure: Ours, in bytes or samples; None if there is none.
        verdict: ``equal`` to the published digits (for a batch the same one); ``close`` for another batch
            than was published that becomes the same with 2% less or more memory; ``off`` otherwise;
            ``left out`` for rows whose cause says that they measure something else.
        problem: Why there is no figure.
        whose: Where the cause of a difference lies.
        cause: What it is.
        is_said: Whether our estimate says that the figure hangs on this.
        version: Of the sources that gave our figure; empty if it was not noted.
    """

    row: Row
    figure: float | None
    verdict: Verdict
    problem: str = ""
    whose: Whose = ""
    cause: str = ""
    is_said: bool = False
    version: str = ""

    @property
    def error(self) -> float:
        """Ours less theirs, over theirs; without a figure not a number."""
        return float("nan") if self.figure is None else self.figure / self.row.truth - 1


def score(row: Row, answers: Answers | None) -> Scored:
    """Compare a row with our answers to its job."""
    whose, cause, is_said = _cause(row)
    if whose == "left out":
        return Scored(row, None, "left out", "", "", cause)
    if answers is None:
        return Scored(row, None, "not run", "", whose, cause, is_said)
    figure = answers.figures.get(row.item)
    if figure is None:
        problem = answers.problem or answers.problems.get(row.item, "the job did not give this figure")
        return Scored(row, None, "failed", problem, whose, cause, is_said)
    return Scored(row, figure, _verdict(row, figure, answers), "", whose, cause, is_said, answers.version)


def _verdict(row: Row, figure: float, answers: Answers) -> Verdict:
    if row.quantity == "batch":
        if figure == row.truth:
            return "equal"
        near = (answers.figures.get("batch-2%"), answers.figures.get("batch+2%"))
        return "close" if row.truth in near else "off"
    return "equal" if abs(figure - row.truth) <= row.rounding else "off"


def _cause(row: Row) -> tuple[Whose | Literal["left out"], str, bool]:
    for pattern, whose, text, is_said in _causes():
        if fnmatch(f"{row.project}:{row.job}:{row.item}", pattern):
            return whose, text, is_said
    return "", "", False


@cache
def _causes() -> list[tuple[str, Whose, str, bool]]:
    table = tomllib.loads((HERE / "causes.toml").read_text())
    return [
        (cause["rows"], cause["whose"], cause["cause"], cause.get("said", False)) for cause in table["causes"]
    ]


def summary(scored: Iterable[Scored]) -> str:
    """A line for each project and verdict, for people."""
    counts = Counter((one.row.project, one.verdict) for one in scored)
    return "\n".join(
        f"{project:20} {verdict:10} {count:6}" for (project, verdict), count in sorted(counts.items())
    )
