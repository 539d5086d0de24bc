"""Finds out why a command failed, from what its processes noted
(``child/xmem_child/records/failures.py``)."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xmem.records import dataclass

# Exceptions that say no more than that another process failed.
_OF_ANOTHER = {"ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException"}
# Signals that nobody else caused. Their numbers differ between systems.
_DEADLY = {
    getattr(signal, name) for name in ("SIGILL", "SIGBUS", "SIGKILL", "SIGSEGV") if hasattr(signal, name)
}
_CUDA_ERROR = re.compile(
    r"CUDA error|CUDA driver error|cuDNN error|\b(?:CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE)_|NCCL"
)
_MOST_SUMMARY = 300


@dataclass(frozen=True)
class Failure:
    """An exception that ended a process or a thread, or a signal that ended a process.

    Attributes:
        process: Number of the process.
        rank: Its rank in its distributed job, None outside of one.
        summary: Type and message of the exception, or which signal it was.
        traceback: Last lines of the traceback; empty for a signal.
        reads: The values of the phantom GPU that it may come from, the likeliest first: ``line``,
            ``function``, ``kind`` and ``value`` of each.
        by_signal: Number of the signal that ended the process, None for an exception.
    """

    process: int
    rank: int | None
    summary: str
    traceback: str
    reads: Sequence[dict[str, Any]]
    by_signal: int | None = None

    @property
    def of_cuda(self) -> bool:
        """Whether a CUDA library reported the error."""
        return bool(_CUDA_ERROR.search(self.summary))

    def in_words(self) -> str:
        """Say who failed with what, in one line: ``rank 1: ValueError: no data``."""
        first, *more = self.summary.splitlines() or [""]
        text = first[:_MOST_SUMMARY] + (" ..." if more or len(first) > _MOST_SUMMARY else "")
        return text if self.rank is None else f"rank {self.rank}: {text}"


def in_words(number: int) -> str:
    """Name a signal: ``signal 11 (SIGSEGV)``."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def first_failure(workspace: Path) -> Failure | None:
    """Return what made the command fail: the first of its processes to fail by itself; None if none noted
    it."""
    notes = sorted(_notes(workspace), key=lambda note: (not note["ends_process"], note["time_ns"]))
    own = [note for note in notes if note["type"] not in _OF_ANOTHER]
    # A process that was killed has noted nothing, and those that then lost it have.
    killed = [row for note in notes for row in note["others"] if -row["exit_status"] in _DEADLY]
    if killed:
        row = killed[0]
        number = -row["exit_status"]
        return Failure(row["process"], row["rank"], f"ended by {in_words(number)}", "", (), number)
    # The script may not have minded the failure of a process without a rank, such as a launcher or helper.
    ranked = [note for note in own if note["rank"] is not None]
    for note in ranked or own or notes:
        return Failure(note["process"], note["rank"], note["summary"], note["traceback"], note["reads"])
    return None


def explain_reads(failure: Failure) -> str:
    """Say what the phantom GPU gave where the script read values, as the rest of a sentence; empty if
    nothing."""
    if not failure.reads:
        return ""
    first, *more = failure.reads
    setting = f"--value {first['line']}={'SHARE' if first['kind'] == 'sizes' else 'NUMBER'}"
    text = f"; the phantom GPU computes nothing: {_read_in_words(first)}"
    text += f"; if that is the cause, set it with {setting}"
    if more:
        text += (
            " (also read before: " + ", ".join(f"{row['line']} (`{row['function']}`)" for row in more) + ")"
        )
    return text


def _read_in_words(row: dict[str, Any]) -> str:
    where = f"{row['line']} (`{row['function']}`)"
    if row["kind"] == "sizes":
        return f"the share of elements selected at {where} was taken as {row['value']}"
    return f"a value read at {where} was {row['value']}"


def _notes(workspace: Path) -> Iterator[dict[str, Any]]:
    for path in workspace.glob("failure.*.json"):
        yield json.loads(path.read_text())
