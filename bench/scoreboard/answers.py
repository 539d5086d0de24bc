"""Our figures for the rows of a job, kept with the code, one table for each project.

A table is a CSV file with the columns ``job, item, figure, problem, torch, version``: one line for each
figure, and one without an item for a job that failed as a whole. A run adds to it job by job, so one that was
cut short goes on, and the page can be written again without running anything.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scoreboard.laboratory import HERE
from xmem.errors import TraceError
from xmem.files.writing import write_whole

KEPT = HERE / "figures"
_COLUMNS = ("job", "item", "figure", "problem", "torch", "version")
_MOST_LETTERS = 160  # of a problem


@dataclass(frozen=True)
class Answers:
    """What a job gave on the phantom GPU.

    Attributes:
        figures: Ours by item, in bytes or samples.
        problems: What went wrong, by item.
        problem: What went wrong with the whole job; empty if it ran.
        torch: The release that ran.
        version: Digest of the sources that decide what comes out.
    """

    figures: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    torch: str = ""
    version: str = ""


@dataclass(frozen=True)
class AnswerTables:
    """Where answers lie.

    Attributes:
        folder: Of the tables; made when something is put there.
    """

    folder: Path = KEPT

    def read(self, project: str) -> dict[str, Answers]:
        """The answers of a project by job; empty if it has none.

        Raises:
            TraceError: The table is damaged.
        """
        path = self._path(project)
        if not path.exists():
            return {}
        found: dict[str, Answers] = {}
        reader = csv.DictReader(io.StringIO(path.read_text()))
        try:
            for line in reader:
                known = found.setdefault(line["job"], Answers(torch=line["torch"], version=line["version"]))
                if not line["item"]:
                    found[line["job"]] = Answers(
                        problem=line["problem"], torch=line["torch"], version=line["version"]
                    )
                elif line["figure"]:
                    known.figures[line["item"]] = float(line["figure"])
                else:
                    known.problems[line["item"]] = line["problem"]
        except (KeyError, TypeError, ValueError) as error:
            problem = f"line {reader.line_num} is not an answer ({error}); delete it and run its job again"
            raise TraceError(problem, str(path)) from error
        return found

    def put(self, project: str, job: str, answers: Answers) -> None:
        """Keep the answers of a job in the place of older ones.

        Raises:
            TraceError: The table is damaged.
            OSError: It cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder):
            write_whole(self._path(project), _text(self.read(project) | {job: answers}).encode())

    def _path(self, project: str) -> Path:
        return self.folder / f"{project}.csv"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs from writing between reading and writing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _text(by_job: Mapping[str, Answers]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for job, answers in sorted(by_job.items()):
        made_by = (answers.torch, answers.version)
        if not answers.figures and not answers.problems:
            lines.writerow((job, "", "", _short(answers.problem), *made_by))
        for item, figure in sorted(answers.figures.items()):
            lines.writerow(
                (job, item, f"{figure:.0f}" if float(figure).is_integer() else figure, "", *made_by)
            )
        for item, problem in sorted(answers.problems.items()):
            lines.writerow((job, item, "", _short(problem), *made_by))
    return text.getvalue()


def _short(problem: str) -> str:
    return next(iter(problem.strip().splitlines()), "no reason known")[:_MOST_LETTERS]
