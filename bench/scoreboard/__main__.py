"""Run the jobs behind published figures on a phantom GPU, and score our figures against them.

    python -m scoreboard --data FOLDER [timm liger ...] [--only TEXT] [--jobs N] [--page docs/scoreboard.md]

Answers stay in ``.scoreboard``, so a run that was cut short goes on. Jobs of a project take turns by card and
kind, so that an early end has seen all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from accuracy.cache import digest
from scoreboard.answers import AnswerFolder, Answers
from scoreboard.laboratory import HERE, Laboratory
from scoreboard.page import write_page
from scoreboard.projects import PROJECTS
from scoreboard.rows import Row
from scoreboard.score import score, summary
from xmem.errors import XmemError
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
    parser.add_argument("--stale", action="store_true", help="take answers of other sources too")
    parser.add_argument("--folder", type=Path, default=Path(".scoreboard"), help="of answers and code")
    parser.add_argument("--environments", type=Path, default=Path(".venv-scoreboard"))
    parser.add_argument("--histories", type=Path, help="of bare clones OWNER/NAME; by default in --folder")
    parser.add_argument("--page", type=Path, help="write the page of the documentation here")
    options = parser.parse_args()
    laboratory = Laboratory(
        (options.histories or options.folder / "histories").absolute(),
        (options.folder / "code").absolute(),
        options.environments.absolute(),
    )
    answers = AnswerFolder(options.folder / "answers", _version(), options.stale)
    chosen = [PROJECTS[name] for name in options.projects or PROJECTS]
    end = time.monotonic() + options.seconds
    try:
        rows: list[Row] = []
        for project in chosen:
            own = [row for row in project.rows(options.data) if options.only in row.job]
            rows += own
            left = [row for row in in_turns(own) if _is_open(answers, row, retry=options.retry)]
            for row in left[: options.jobs]:
                if time.monotonic() > end:
                    break
                if not _is_open(answers, row, retry=options.retry):
                    continue  # another process has run it meanwhile
                _run(row, laboratory, answers)
        scored = [score(row, answers.find(row.project, row.job)) for row in rows]
        print(summary(scored))
        if options.page is not None:
            write_page(scored, options.page, answers.version)
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")


def _version() -> str:
    import xmem.capture

    child = Path(xmem.capture.__file__).parent / "child"
    return digest(child, HERE / "scripts", *sorted(library_folder().glob("*xmem_phantom*")))


def _is_open(answers: AnswerFolder, row: Row, *, retry: bool) -> bool:
    if score(row, None).verdict == "left out":
        return False
    known = answers.find(row.project, row.job)
    return known is None or (retry and bool(known.problem))


def _run(row: Row, laboratory: Laboratory, folder: AnswerFolder) -> None:
    begin = time.monotonic()
    try:
        answers = PROJECTS[row.project].run(row, laboratory)
    except XmemError as error:
        answers = Answers(problem=str(error))
    seconds = time.monotonic() - begin
    folder.put(row.project, row.job, replace(answers, seconds=round(seconds, 1), version=folder.version))
    said = answers.problem or ", ".join(f"{item} {figure:g}" for item, figure in answers.figures.items())
    print(f"{time.strftime('%H:%M:%S')} {row.project} {row.job} in {seconds:.0f} s: {said[:300]}", flush=True)


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
