"""Run the jobs behind published figures on a phantom GPU, and score our figures against them.

    python -m scoreboard --data FOLDER [timm liger ...] [--only TEXT] [--jobs N] [--page docs/scoreboard.md]

Answers stay in ``scoreboard/figures``, so a run that was cut short goes on, and ``--jobs 0`` scores what is
there. Jobs of a project take turns by card and kind, so that an early end has seen all of them.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from accuracy.cache import digest
from scoreboard.answers import KEPT, Answers, AnswerTables
from scoreboard.calibration import as_text
from scoreboard.laboratory import HERE, Laboratory
from scoreboard.page import write_page
from scoreboard.projects import PROJECTS
from scoreboard.rows import Row
from scoreboard.score import Scored, score, summary
from xmem.errors import ConfigError, XmemError
from xmem.files.writing import write_whole
from xmem.phantom.installation import library_folder


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scoreboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("projects", nargs="*", choices=[*PROJECTS, []], help="by default all")
    parser.add_argument("--data", type=Path, required=True, help="folder of the published figures")
    parser.add_argument("--only", default="", help="only jobs whose names hold this")
    parser.add_argument("--jobs", type=int, help="run at most so many jobs of each project; 0 only scores")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no job after this time")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--stale", action="store_true", help="do not run again what an earlier version ran")
    parser.add_argument("--folder", type=Path, default=Path(".scoreboard"), help="of histories and code")
    parser.add_argument("--figures", type=Path, default=KEPT, help="of our answers")
    parser.add_argument("--environments", type=Path, default=Path(".venv-scoreboard"))
    parser.add_argument("--histories", type=Path, help="of bare clones OWNER/NAME; by default in --folder")
    parser.add_argument(
        "--page",
        type=Path,
        help="write the page of the documentation, with all projects, and its picture here",
    )
    parser.add_argument(
        "--calibration", type=Path, help="write the residuals of all projects, for intervals of estimates"
    )
    options = parser.parse_args()
    laboratory = Laboratory(
        (options.histories or options.folder / "histories").absolute(),
        (options.folder / "code").absolute(),
        options.environments.absolute(),
    )
    tables = AnswerTables(options.figures)
    version = _version()
    wanted = None if options.stale else version
    chosen = [PROJECTS[name] for name in options.projects or PROJECTS]
    end = time.monotonic() + options.seconds

    def is_left(row: Row, known: dict[str, Answers]) -> bool:
        return is_open(row, known.get(row.job), wanted, retry=options.retry)

    try:
        rows: list[Row] = []
        for project in chosen:
            own = [row for row in project.rows(options.data) if options.only in row.job]
            rows += own
            known = tables.read(project.NAME)
            left = [row for row in in_turns(own) if is_left(row, known)]
            for row in left[: options.jobs]:
                if time.monotonic() > end:
                    break
                with claimed(row, options.folder) as is_ours:
                    if not is_ours or not is_left(row, tables.read(project.NAME)):
                        continue  # another process runs it, or has run it meanwhile
                    tables.put(row.project, row.job, replace(_run(row, laboratory), version=version))
        if options.only and not rows:
            raise ConfigError(
                f"no job's name holds {options.only!r}",
                "look for the table, the release or the options of the figure in the project's adapter",
            )
        print(summary(_scored(rows, tables)))
        if options.page is not None or options.calibration is not None:
            every = _scored(
                [row for project in PROJECTS.values() for row in project.rows(options.data)], tables
            )
            if options.page is not None:
                write_page(every, options.page, version)
            if options.calibration is not None:
                write_whole(options.calibration, as_text(every).encode())
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")


def _scored(rows: Sequence[Row], tables: AnswerTables) -> list[Scored]:
    known = {project: tables.read(project) for project in {row.project for row in rows}}
    return [score(row, known[row.project].get(row.job)) for row in rows]


def _version() -> str:
    import xmem.capture

    child = Path(xmem.capture.__file__).parent / "child"
    return digest(child, HERE / "scripts", *sorted(library_folder().glob("*xmem_phantom*")))


def is_open(row: Row, known: Answers | None, version: str | None, *, retry: bool) -> bool:
    """Whether the job of a row has to run.

    Args:
        row: A figure of the job.
        known: The answers that there are.
        version: Answers of other versions do not count; None if all do.
        retry: Whether a job that failed runs again.
    """
    if score(row, None).verdict == "left out":
        return False
    if known is None or version not in (None, known.version):
        return True
    return retry and bool(known.problem)


def _run(row: Row, laboratory: Laboratory) -> Answers:
    begin = time.monotonic()
    try:
        answers = PROJECTS[row.project].run(row, laboratory)
    except XmemError as error:
        answers = Answers(problem=str(error))
    seconds = time.monotonic() - begin
    said = answers.problem or ", ".join(f"{item} {figure:g}" for item, figure in answers.figures.items())
    print(f"{time.strftime('%H:%M:%S')} {row.project} {row.job} in {seconds:.0f} s: {said[:300]}", flush=True)
    return answers


@contextmanager
def claimed(row: Row, folder: Path) -> Iterator[bool]:
    """Keep other processes from the job of a row; yield whether none has it already."""
    running = folder / "running"
    running.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(f"{row.project} {row.job}".encode()).hexdigest()[:16]
    with (running / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True  # until the file is closed


def in_turns(rows: list[Row]) -> list[Row]:
    """One row for each job: the first of each kind and card, then the second of each, in an order that only
    depends on the names."""
    jobs = {row.job: row for row in rows}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for job in random.Random(0).sample(sorted(jobs), len(jobs)):
        row = jobs[job]
        groups.setdefault((row.kind, row.gpu, row.torch), []).append(row)
    turns = max(map(len, groups.values()), default=0)
    return [group[turn] for turn in range(turns) for group in groups.values() if turn < len(group)]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
