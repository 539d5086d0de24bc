"""Comparison of two runs as one self-contained page: no script, light and dark, printable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from xmem.difference import Difference, SizeChange
from xmem.difference.causes import factor
from xmem.records import dataclass
from xmem.reports import offline_page
from xmem.reports.difference.phrases import (
    grouped_modules,
    headline,
    in_words,
    instant_in_words,
    named_sizes,
    place,
    renamed_in_words,
)
from xmem.text.units import format_bytes, format_change
from xmem.text.words import spaced

_FOLDER = Path(__file__).parent
_MOST_ROWS = 40
_WATERFALL_NAMES = {
    "context": "CUDA context",
    "outside": "outside of PyTorch",
    "beyond_allocated": "reserved beyond allocated",
}


@dataclass(frozen=True)
class _Bar:
    """A bar of the waterfall, in percent of the longest."""

    label: str
    size: str
    kind: str
    left: float
    width: float


@dataclass(frozen=True)
class _Table:
    """Sizes of both runs with a bar for the change; ``style`` is the class of the names."""

    title: str
    changes: Sequence[SizeChange]
    style: str = ""

    @property
    def rows(self) -> Sequence[SizeChange]:
        return self.changes[:_MOST_ROWS]

    @property
    def more(self) -> int:
        return len(self.changes) - len(self.rows)

    def share(self, change: SizeChange) -> float:
        """Return a change relative to the largest one, in percent."""
        largest = max(abs(other.change_bytes) for other in self.changes)
        return round(abs(change.change_bytes) / (largest or 1) * 100, 2)


def page_of(difference: Difference, *, before: str, after: str) -> str:
    """Return the comparison as the text of an HTML page.

    Args:
        difference: What to show.
        before: Label of the first run, such as its file.
        after: Label of the second run.
    """
    environment = offline_page.environment(_FOLDER)
    environment.filters["sign"] = _sign
    environment.globals["factor"] = factor
    tables = [
        _Table("Sizes", named_sizes(difference)),
        _Table("By category", in_words(difference.category)),
        _Table("By phase of birth", in_words(difference.phase)),
        _Table("By module", _changed(grouped_modules(difference.module)), "name"),
        _Table("By source line", _changed(difference.source_line), "name"),
        _Table("By operator", _changed(difference.operator), "name"),
    ]
    return environment.get_template("page.html.j2").render(
        difference=difference,
        before=before,
        after=after,
        headline=headline(difference),
        style=offline_page.style(_FOLDER / "page.css"),
        waterfall=list(_waterfall(difference)),
        tables=tables,
        peak_before=place(difference.peak_before),
        peak_after=place(difference.peak_after),
        instants=[(instant_in_words(instant), instant.category) for instant in difference.instants],
        renamed=renamed_in_words(difference),
    )


def _waterfall(difference: Difference) -> Iterator[_Bar]:
    """Yield the bars from the first device peak through each part's change to the second."""
    device = difference.size("device_peak")
    steps = sorted(
        (step for step in difference.waterfall if step.change_bytes), key=lambda step: -step.change_bytes
    )
    ends = list(accumulate((step.change_bytes for step in steps), initial=device.before_bytes))
    longest = max(*ends, device.after_bytes, 1)

    def bar(label: str, size: str, kind: str, begin: int, end: int) -> _Bar:
        left, width = min(begin, end) / longest * 100, abs(end - begin) / longest * 100
        return _Bar(label, size, kind, round(left, 3), round(width, 3))

    yield bar("device peak before", format_bytes(device.before_bytes), "total", 0, device.before_bytes)
    for step, begin, end in zip(steps, ends[:-1], ends[1:], strict=True):
        label = _WATERFALL_NAMES.get(step.name, spaced(step.name))
        yield bar(label, format_change(step.change_bytes), _sign(step.change_bytes), begin, end)
    yield bar("device peak after", format_bytes(device.after_bytes), "total", 0, device.after_bytes)


def _sign(change_bytes: int) -> str:
    return "more" if change_bytes > 0 else "less" if change_bytes < 0 else "none"


def _changed(changes: Iterable[SizeChange]) -> list[SizeChange]:
    return [change for change in changes if change.change_bytes]
