"""Estimates of measured runs: from a file with one row per run and way, and from the runs' own file.

The columns are those of ``IDENTITY``, then way, estimate_bytes, estimated_oom, seconds, low_bytes, high_bytes
and note; ``policies`` may follow, a JSON object of the bytes at the peak by policy. Estimates cover the same
memory as the truth: reserved by the allocator, and loaded on the way. An empty estimate means that the way
has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from xmem.devices.gpus import find_device
from xmem.errors import ConfigError, TraceError
from xmem.files.documents import parse_json
from xmem.records import dataclass
from xmem.validation.runs import IDENTITY, Identity, MeasuredRun, TableRow, read_table

WAYS = ("phantom", "fake", "cpu", "fitted")
_REQUIRED = (*IDENTITY, "way", "estimate_bytes", "estimated_oom")


@dataclass(frozen=True)
class RowEstimate:
    """Estimate of one run by one way; sizes in bytes.

    Attributes:
        identity: Identity of the run.
        way: Way of estimating: one of ``WAYS``, or the name of another method.
        estimate_bytes: Estimate to compare with ``MeasuredRun.peak_bytes``, None where there is none.
        estimated_oom: Whether the job fails on the run's GPU; None where the way does not predict it.
        seconds: Time that the estimate took, without captures; None where unknown.
        low_bytes: Least need that the way itself leaves possible, None where there is no such doubt.
        high_bytes: Largest need that it leaves possible.
        note: Remark on the estimate.
        policies: Change by each policy at the peak; empty where unknown.
    """

    identity: Identity
    way: str
    estimate_bytes: int | None
    estimated_oom: bool | None = None
    seconds: float | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    note: str = ""
    policies: Mapping[str, int] = field(default_factory=dict)


def read_estimates(path: str | os.PathLike[str]) -> tuple[RowEstimate, ...]:
    """Read all estimates of a file; one that ends in ``.json`` holds a list of objects with the same keys.

    Raises:
        ConfigError: There is no such file.
        TraceError: A column is missing or a cell cannot be read; the error names file and line.
    """
    if Path(path).suffix == ".json":
        return tuple(_estimate(row) for row in _json_rows(path))
    with read_table(path, _REQUIRED) as rows:
        return tuple(_estimate(row) for row in rows)


def _json_rows(path: str | os.PathLike[str]) -> Iterable[TableRow]:
    try:
        rows = parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise TraceError(f"not JSON ({error}); write it again", path) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError("not a list of objects; write one object for each run and way", path)
    for number, row in enumerate(rows, 1):
        missing = [column for column in _REQUIRED if column not in row]
        if missing:
            raise TraceError(f"object {number} has no key {', '.join(missing)}; write it again", path)
        yield TableRow(path, number, {name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _estimate(row: TableRow) -> RowEstimate:
    def size(column: str) -> int | None:
        value = row.number(column)
        if value is not None and value <= 0:
            row.refuse(column, repr(value), "a positive number of bytes or empty")
        return None if value is None else round(value)

    return RowEstimate(
        identity=tuple(row.text(column) for column in IDENTITY),
        way=row.filled("way"),
        estimate_bytes=size("estimate_bytes"),
        estimated_oom=row.truth("estimated_oom"),
        seconds=row.number("seconds"),
        low_bytes=size("low_bytes"),
        high_bytes=size("high_bytes"),
        note=row.text("note"),
        policies=_policies(row),
    )


def _policies(row: TableRow) -> dict[str, int]:
    text = row.text("policies")
    try:
        found = parse_json(text) if text else {}
        return {str(name): int(size) for name, size in found.items()}
    except (ValueError, TypeError, AttributeError):
        row.refuse("policies", repr(text), "a JSON object of bytes by policy, or empty")


def published_estimate(method: str, run: MeasuredRun) -> RowEstimate | None:
    """Return the published estimate of a run by a published method; None where it has none.

    The authors took a job to fail where the estimate was above the GPU's memory; for xMem it is known from
    the second run, which was made only where xMem predicted no failure.
    """
    size = run.published_bytes.get(method)
    if size is None:
        return None
    own = method == "xMem"
    return RowEstimate(
        identity=run.identity,
        way=method,
        estimate_bytes=size,
        estimated_oom=size > run.total_bytes or (own and run.published_second_oom is None),
        seconds=run.published_seconds if own else None,
    )


def context_bytes(gpu: str) -> int:
    """Return the CUDA context of a GPU before anything runs, which the truth does not include.

    Raises:
        ConfigError: No GPU is known by this name.
    """
    device = find_device(gpu)
    return device.context_bytes - device.loaded_kernels_bytes


def first_of(ways: Sequence[str], estimates: Iterable[RowEstimate]) -> tuple[RowEstimate, ...]:
    """Return for each run the estimate of the first way that has one, else that of the first way."""
    rank = {way: place for place, way in enumerate(ways)}
    best: dict[Identity, RowEstimate] = {}
    for estimate in estimates:
        if estimate.way not in rank:
            continue
        known = best.get(estimate.identity)
        if known is None or _place(estimate, rank) < _place(known, rank):
            best[estimate.identity] = estimate
    return tuple(best.values())


def _place(estimate: RowEstimate, rank: Mapping[str, int]) -> tuple[bool, int]:
    return estimate.estimate_bytes is None, rank[estimate.way]
