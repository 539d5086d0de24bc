"""What the project promises of its speed, and whether this run kept it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

CHANGED = 0.15
"""A ratio that moved by more than this share since the baseline is worth a look."""


@dataclass(frozen=True)
class Bar:
    """A figure of a run and what it has to be."""

    figure: str
    what: str
    bound: str
    limit: float

    def met_by(self, value: float) -> bool:
        return {"at least": operator.ge, "at most": operator.le}[self.bound](value, self.limit)


BARS = (
    Bar("rate / simdjson", "read rate over raw simdjson's, 860 MB", "at least", 0.66),
    Bar("rate / orjson", "read rate over orjson's, 860 MB", "at least", 20),
    Bar("rate / hta", "read rate over Holistic Trace Analysis's, 860 MB", "at least", 50),
    Bar("estimate s", "xmem-fast estimate on 860 MB, seconds of the process", "at most", 1.5),
    Bar("estimate MB", "its peak anonymous memory, MB", "at most", 300),
    Bar("estimate 5 GB MB", "peak anonymous memory of 5 GB, MB", "at most", 1.5 * 300),
    Bar("memory 5 GB / 860 MB", "peak memory of 5 GB over that of 860 MB", "at most", 1.5),
    Bar("growth", "largest distance of a time from a straight line, 100 MB to 5 GB", "at most", 0.15),
    Bar("rate gz / plain", "read rate of .json.gz over the plain file's", "at least", 0.5),
    Bar("rate zst / plain", "read rate of .json.zst over the plain file's", "at least", 0.5),
    Bar("replay M/s", "allocator replay, million requests a second", "at least", 10),
    Bar("start-up s", "xmem-fast --version, seconds of the process", "at most", 0.3),
)


@dataclass(frozen=True)
class Verdict:
    """A bar, the figure of this run, and that of the baseline."""

    bar: Bar
    value: float | None
    baseline: float | None

    @property
    def says(self) -> str:
        if self.value is None:
            return "not run"
        return "met" if self.bar.met_by(self.value) else "MISSED"

    @property
    def change(self) -> float | None:
        """Share by which the figure moved since the baseline."""
        if self.value is None or not self.baseline:
            return None
        return self.value / self.baseline - 1

    @property
    def moved(self) -> bool:
        """Whether that is more than machines and moments make."""
        return self.change is not None and abs(self.change) > CHANGED


def judge(figures: Mapping[str, float], baseline: Mapping[str, float]) -> list[Verdict]:
    return [Verdict(bar, figures.get(bar.figure), baseline.get(bar.figure)) for bar in BARS]
