"""Part 2: the least memory that a training job works with.

Every trial is a run of its own with a cap on what the allocator may reserve; several share the device, since
only their outcome counts. The search is the visit's: it sends caps and learns which were enough.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

GRAIN_BYTES = 2 << 20
_PRECISION = 0.01
_WAYS = 4
_FIRST_SHARES = (0.6, 0.75, 0.88, 0.95, 1.0)


def run(config: dict[str, Any], session: Any) -> dict[str, Any]:
    """One trial: train under a cap; ``cap_bytes`` of None is none."""
    from workloads import Job, prepare
    from xmem_measure.parts.training import trained

    job = {name: value for name, value in config.items() if name != "cap_bytes"}
    prepared = prepare(Job(**job), session.scale)
    session.start()
    if config["cap_bytes"] is not None:
        session.meter.limit(config["cap_bytes"])
    result = trained(prepared, session.meter)
    return {
        name: result[name]
        for name in ("outcome", "peak_allocated_bytes", "peak_reserved_bytes", "statistics")
    }


@dataclass(frozen=True)
class Trial:
    """What became of one cap."""

    cap_bytes: int
    finished: bool


def search(unlimited_bytes: int) -> Generator[list[int], list[Trial], tuple[int, int]]:
    """Find the smallest cap that is enough, to 1%: yields caps to try at once, is sent their trials.

    A job that works under a cap is taken to work under any larger one.

    Args:
        unlimited_bytes: What the job reserved without a cap.

    Returns:
        The smallest cap that was enough and the largest below it that was not; 0 and 0 if none was enough.
    """
    enough, too_little = _round_up(unlimited_bytes), 0
    # The last cap of the first round is what the job took by itself.
    caps = sorted({_round_up(int(enough * share)) for share in _FIRST_SHARES})
    confirmed = False
    while True:
        trials = yield caps
        finished = [trial.cap_bytes for trial in trials if trial.finished]
        if not finished and not confirmed:
            return 0, 0
        confirmed = True
        enough = min([enough, *finished])
        too_little = max(
            [too_little, *(t.cap_bytes for t in trials if not t.finished and t.cap_bytes < enough)]
        )
        if enough - too_little <= max(GRAIN_BYTES, int(enough * _PRECISION)):
            return enough, too_little
        caps = _between(too_little, enough, _WAYS)


def _between(low: int, high: int, count: int) -> list[int]:
    """Caps that part the range, whole grains."""
    caps = {_round_up(low + (high - low) * step // (count + 1)) for step in range(1, count + 1)}
    return sorted(cap for cap in caps if low < cap < high)


def _round_up(size: int) -> int:
    return -(-size // GRAIN_BYTES) * GRAIN_BYTES
