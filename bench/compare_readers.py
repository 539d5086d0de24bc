"""xmem beside other readers of JSON and of traces: rate, memory, ratio, on one file in one run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measure import MB, Run, Spread, first_cpu, interleaved, run
from readers import MEMORY_CATEGORY

BENCH = Path(__file__).parent
WINDOW_BYTES = 1_000_000
REFERENCE = "xmem"

LABELS = {
    "xmem": "xmem, all cores",
    "xmem-1": "xmem, one core",
    "simdjson-windows": "raw simdjson, in windows",
    "simdjson": "raw simdjson, whole file",
    "pysimdjson": "pysimdjson",
    "polars": "polars",
    "orjson": "orjson",
    "ijson": "ijson",
    "json": "Python json",
    "hta": "Holistic Trace Analysis",
}

FAST = ("xmem", "xmem-1", "simdjson-windows", "simdjson")
ALL = (*FAST, "pysimdjson", "polars", "orjson", "ijson", "json", "hta")
LARGE_SLOW = ("xmem", "pysimdjson", "polars", "orjson", "hta")
"""What is worth minutes on a large file."""


class DisagreementError(Exception):
    """Two readers found different things in one file, so their times cannot be compared."""


@dataclass(frozen=True)
class ReaderResult:
    """One reader on one file.

    Attributes:
        reader: Key of ``LABELS``.
        file_bytes: Length of the file.
        read_s: Seconds of reading alone.
        process_s: Seconds of the whole process, with its imports and the count that is checked.
        mb_per_s: Millions of bytes a second of reading.
        peak_anonymous_bytes: Memory of the whole process but for pages of files.
        xmem_is_times_faster: Ratio of the rates, round by round.
    """

    reader: str
    file_bytes: int
    read_s: Spread
    process_s: Spread
    mb_per_s: Spread
    peak_anonymous_bytes: int
    xmem_is_times_faster: Spread


def command_of(reader: str, trace: Path, raw_simdjson: Path) -> list[str]:
    if reader == "simdjson":
        return [str(raw_simdjson), str(trace)]
    if reader == "simdjson-windows":
        return [str(raw_simdjson), str(trace), str(WINDOW_BYTES)]
    return [sys.executable, str(BENCH / "readers.py"), reader.removesuffix("-1"), str(trace)]


def compare_readers(
    trace: Path, readers: Sequence[str], repeats: int, raw_simdjson: Path
) -> list[ReaderResult]:
    """Read one file with every reader in turn, round after round.

    Raises:
        DisagreementError: They did not find the same; nothing was timed.
    """
    size = trace.stat().st_size
    cases = {
        reader: partial(
            run,
            command_of(reader, trace, raw_simdjson),
            cpus=first_cpu() if reader.endswith("-1") else None,
        )
        for reader in readers
    }
    # The weighed run also warms the page cache and shows the answers that have to agree.
    weighed = {reader: start(weigh=True) for reader, start in cases.items()}
    require_agreement({reader: one.output["answer"] for reader, one in weighed.items()})
    runs = interleaved(cases, repeats)
    return [
        ReaderResult(
            reader=reader,
            file_bytes=size,
            read_s=Spread.of(_read_s(runs[reader])),
            process_s=Spread.of([one.wall_s for one in runs[reader]]),
            mb_per_s=Spread.of([size / MB / seconds for seconds in _read_s(runs[reader])]),
            peak_anonymous_bytes=weighed[reader].peak_anonymous_bytes or 0,
            xmem_is_times_faster=Spread.of(
                [
                    other / own
                    for other, own in zip(_read_s(runs[reader]), _read_s(runs[REFERENCE]), strict=True)
                ]
            ),
        )
        for reader in readers
    ]


def _read_s(runs: Sequence[Run]) -> list[float]:
    return [one.output["read_s"] for one in runs]


def require_agreement(answers: Mapping[str, Mapping[str, Any]]) -> None:
    reference = answers[REFERENCE]
    for reader, answer in answers.items():
        for what, found in answer.items():
            expected = reference[what]
            if reader == "hta" and what == "events":
                # It keeps events that last, so no memory events.
                expected = {category: n for category, n in expected.items() if category != MEMORY_CATEGORY}
            if found is not None and found != expected:
                raise DisagreementError(f"{what}: {LABELS[reader]} found {found}, xmem found {expected}")
