"""What a visit says before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xmem_measure.plan import PARTS, Run

_MIB = 1 << 20


def announce(runs: Sequence[Run], finished: int, minutes: float, missing: Mapping[str, str]) -> str:
    """The plan of a visit."""
    lines = [f"{len(runs)} runs to do, {finished} done in earlier visits, {minutes:g} minutes:"]
    lines += _table(runs)
    lines += [f"  not here: {name} ({why}); what needs it is left out" for name, why in missing.items()]
    return "\n".join(lines)


def list_plan(runs: Sequence[Run]) -> str:
    """Every run, in order."""
    return "\n".join([*(str(run) for run in runs), f"{len(runs)} runs:", *_table(runs)])


def _table(runs: Sequence[Run]) -> list[str]:
    counts = Counter(run.part for run in runs)
    seconds = Counter[str]()
    for run in runs:
        seconds[run.part] += run.seconds  # type: ignore[assignment]
    lines = [
        f"  {part:13s} {counts[part]:4d} runs, about {seconds[part] / 60:5.1f} min: {what}"
        for part, what in PARTS.items()
        if counts[part]
    ]
    return [*lines, f"  {'all':13s} {len(runs):4d} runs, about {sum(seconds.values()) / 60:5.1f} min"]


def progress(run: Run, record: Mapping[str, Any], left: int, seconds_left: float) -> str:
    """One line for a finished run."""
    what = record["outcome"]
    if "peak_reserved_bytes" in record:
        what += f", {record['peak_reserved_bytes'] / _MIB:,.0f} MiB reserved"
    if "least_bytes" in record:
        what += f", {record['least_bytes'] / _MIB:,.0f} MiB are enough"
    if record["outcome"] == "failed":
        what += f": {(record.get('error') or '?').splitlines()[-1][:120]}"
    return f"[{left} left, {seconds_left / 60:4.1f} min] {run}: {what} ({record['seconds']:.1f} s)"


def conclude(records: Iterable[Mapping[str, Any]], left: int, seconds: float, size: int, folder: str) -> str:
    """What a visit brought."""
    outcomes: dict[str, Counter[str]] = {}
    errors: dict[str, int] = {}
    for record in records:
        outcomes.setdefault(record["part"], Counter())[record["outcome"]] += 1
        if record["outcome"] in ("failed", "timeout"):
            error = (record.get("error") or record["outcome"]).splitlines()[-1]
            errors[error] = errors.get(error, 0) + 1
    lines = [f"{sum(map(Counter.total, outcomes.values()))} runs in {seconds / 60:.1f} minutes, {left} left"]
    for part, counts in outcomes.items():
        each = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
        lines.append(f"  {part:13s} {each}")
    lines += [f"  {count} x {error[:200]}" for error, count in errors.items()]
    if outcomes:
        lines.append(f"{folder}: {size / _MIB:.2f} MiB. Commit it; run the same command again to continue.")
    return "\n".join(lines)
