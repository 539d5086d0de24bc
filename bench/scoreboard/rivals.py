"""Ask the other estimators about timm's training jobs: does the published batch fit the card?

    python -m scoreboard.rivals METHOD --data FOLDER --python ENV/bin/python

The estimators of ``accuracy.rivals`` take a model and a batch, so these are the rows that they can answer.
Each is asked for the peak at the published batch, and at the next larger one that timm's benchmark tries,
which did not fit. Of timm's mixed precision only MemTracker knows, as it runs the forward pass itself. Asked
are the rows that we have a figure for; answers stay in ``scoreboard/figures/rivals.csv``. The environment
needs torch, torchvision, transformers, timm, and the estimator.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accuracy.rivals.compare import METHODS, Rival
from scoreboard.answers import KEPT, AnswerTables
from scoreboard.projects import timm
from scoreboard.rows import Row
from xmem.devices.gpus import find_device
from xmem.errors import XmemError
from xmem.validation.estimates import context_bytes

_FILE = "rivals.csv"
_LARGEST_BATCH = 512  # what timm's benchmark begins with in these tables


@dataclass(frozen=True)
class Said:
    """What an estimator says of a job at a batch.

    Attributes:
        method: The estimator.
        job: As in ``Row``.
        batch: Samples.
        peak_bytes: Its peak; None if it gives none.
        note: Why not.
    """

    method: str
    job: str
    batch: int
    peak_bytes: int | None
    note: str


@dataclass(frozen=True)
class Verdicts:
    """How an estimator does on rows with a published batch.

    Attributes:
        method: The estimator.
        rows: How many it was asked about.
        answered: Of how many it gave a peak.
        right: Where the published batch fits by its peaks, and the next larger one does not.
        too_large: Where it says that the larger one fits, too, which ran out of memory.
        too_small: Where it says that the published one does not fit, nor the larger one.
    """

    method: str
    rows: int
    answered: int
    right: int
    too_large: int
    too_small: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published figures")
    parser.add_argument("--python", required=True, help="of the environment")
    parser.add_argument("--figures", type=Path, default=KEPT)
    parser.add_argument("--timeout", type=float, default=120, help="seconds that one answer may take")
    options = parser.parse_args()
    try:
        known = AnswerTables(options.figures).read(timm.NAME)
        asked = [row for row in timm.rows(options.data) if row.kind == "training" and row.job in known]
        said = read(options.figures)
        done = {(one.method, one.job, one.batch) for one in said}
        rival = Rival(options.python, METHODS[options.method], options.timeout)
        for row in asked:
            for batch in _batches(row):
                if (options.method, row.job, batch) in done:
                    continue
                answer = rival.ask(_question(row, batch))
                said.append(
                    Said(options.method, row.job, batch, answer.get("peak_bytes"), answer.get("note", ""))
                )
                print(said[-1], file=sys.stderr, flush=True)
                _write(options.figures, said)
        rival.close()
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")


def read(figures: Path = KEPT) -> list[Said]:
    """What was said so far."""
    if not (figures / _FILE).exists():
        return []
    with (figures / _FILE).open(newline="") as lines:
        return [
            Said(
                line["method"],
                line["job"],
                int(line["batch"]),
                int(line["peak_bytes"]) if line["peak_bytes"] else None,
                line["note"],
            )
            for line in csv.DictReader(lines)
        ]


def judge(rows: Sequence[Row], said: Sequence[Said]) -> Iterator[Verdicts]:
    """Judge each estimator on the rows that it was asked about."""
    for method in dict.fromkeys(one.method for one in said):
        peaks = {(one.job, one.batch): one.peak_bytes for one in said if one.method == method}
        asked = [row for row in rows if (row.job, int(row.truth)) in peaks]
        answered = []  # for each row whether the published batch fits, and whether the larger one does
        for row in asked:
            known = [peaks.get((row.job, batch)) for batch in _batches(row)]
            fits = [peak <= _room(row.gpu) for peak in known if peak is not None]
            if len(fits) == len(known):
                answered.append((fits[0], any(fits[1:])))
        yield Verdicts(
            method,
            rows=len(asked),
            answered=len(answered),
            right=answered.count((True, False)),
            too_large=answered.count((True, True)) + answered.count((False, True)),
            too_small=answered.count((False, False)),
        )


def _batches(row: Row) -> list[int]:
    """The published batch, and the next larger one that was tried."""
    batch, tried = _LARGEST_BATCH, []
    while batch > row.truth:
        tried.append(batch)
        batch = _next_smaller(batch)
    return [int(row.truth), *tried[-1:]]


def _next_smaller(batch: int) -> int:
    """What timm's benchmark tries after a batch that failed: powers of two and what lies halfway between."""
    power = 1 << (batch.bit_length() - 1)
    return power * 3 // 4 if batch == power else power


def _room(gpu: str) -> int:
    """What a job can have of a card beside the CUDA context."""
    return find_device(gpu).total_memory_bytes - context_bytes(gpu)


def _question(row: Row, batch: int) -> str:
    """The job as ``workloads.Job`` takes it."""
    _, model, size = row.job.split("/")
    job = {"family": "cnn", "model": f"timm/{model}", "optimizer": "SGD", "batch": batch, "pixels": int(size)}
    return json.dumps({**job, "precision": "bf16"})


def _write(figures: Path, said: Sequence[Said]) -> None:
    with (figures / _FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Said.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            asdict(one) for one in sorted(said, key=lambda one: (one.method, one.job, one.batch))
        )


if __name__ == "__main__":
    main()
