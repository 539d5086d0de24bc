"""Wording of a comparison that the text and the page have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Literal

from xmem.difference import Difference, Instant, Setting, SizeChange
from xmem.difference.names import by_pattern
from xmem.estimation.estimate import AllocatedPeak
from xmem.records import dataclass
from xmem.text.units import format_bytes
from xmem.text.words import spaced

_SIZE_NAMES = {
    "device_peak": "Device peak",
    "context": "  CUDA context",
    "outside": "  outside of PyTorch",
    "peak_reserved": "  reserved",
    "peak_allocated": "    allocated at its peak",
    "beyond_allocated": "    reserved beyond it",
    "peak_requested": "Requested by tensors",
}


@dataclass(frozen=True)
class Headline:
    """The change of the device peak, in a few words and then in full."""

    lead: str
    rest: str
    tone: Literal["bad", "good", "same"]


def headline(difference: Difference) -> Headline:
    """Return the headline: by how much the device peak changed, and what became of the verdict."""
    device = difference.size("device_peak")
    before, after = format_bytes(device.before_bytes), format_bytes(device.after_bytes)
    verdict = ""
    if difference.fits_before is not None and difference.fits_before != difference.fits_after:
        verdict = {True: "; it fits now", False: "; it no longer fits", None: ""}[difference.fits_after]
    change = device.change_bytes
    if change == 0:
        allocated = difference.size("peak_allocated").change_bytes
        more = "more" if allocated > 0 else "less"
        part = f", with {format_bytes(abs(allocated))} {more} allocated" if allocated else ""
        return Headline("Same peak", f"{after} of GPU memory in both runs{part}{verdict}", "same")
    share = f" ({change / device.before_bytes:+.1%})" if device.before_bytes else ""
    return Headline(
        f"{'Grew' if change > 0 else 'Shrank'} by {format_bytes(abs(change))}{share}",
        f"{before} of GPU memory before, {after} after{verdict}",
        "bad" if change > 0 else "good",
    )


def named_sizes(difference: Difference) -> list[SizeChange]:
    """Return the sizes of both runs under their names in words, indented below what they are part of."""
    sizes = ((label, difference.size(name)) for name, label in _SIZE_NAMES.items())
    return [SizeChange(label, size.before_bytes, size.after_bytes) for label, size in sizes]


def in_words(changes: Iterable[SizeChange]) -> list[SizeChange]:
    """Return changes of categories or phases under their names in words."""
    return [SizeChange(spaced(change.name), change.before_bytes, change.after_bytes) for change in changes]


def grouped_modules(modules: Sequence[SizeChange]) -> list[SizeChange]:
    """Merge modules whose paths differ only by numbers into one row each, most change first."""
    by_name = {module.name: module for module in modules}
    rows = [
        SizeChange(
            f"{name} ({len(group)})" if len(group) > 1 else name,
            sum(by_name[module].before_bytes for module in group),
            sum(by_name[module].after_bytes for module in group),
        )
        for name, group in by_pattern(by_name).items()
    ]
    return sorted(rows, key=lambda row: (-abs(row.change_bytes), -row.after_bytes))


def place(peak: AllocatedPeak | Instant) -> str:
    """Describe a place: ``backward, aten::mm at train.py:59 (GPT.head)``."""
    words = spaced(peak.phase)
    if peak.operator:
        words += f", {peak.operator}"
    if peak.source_line:
        words += f" at {peak.source_line}"
    return f"{words} ({peak.module})" if peak.module else words


def instant_in_words(instant: Instant) -> str:
    """Describe what both runs held at the place of one run's peak."""
    which = "first" if instant.peak_of == "before" else "second"
    found = "" if instant.found_by == "path" else f", the other run at the same {instant.found_by}"
    before, after = format_bytes(instant.before_bytes), format_bytes(instant.after_bytes)
    return f"where the {which} run peaks{found}: {before} allocated before, {after} after"


def renamed_in_words(difference: Difference) -> list[str]:
    """Describe how many names were aligned, with an example of each kind."""
    words = []
    for kind, noun in (("module", "modules"), ("source_line", "source lines")):
        names = [name for name in difference.renamed if name.kind == kind]
        if names:
            words.append(f"{len(names):,} {noun}, such as {names[0].before} as {names[0].after}")
    return words


def elided(setting: Setting) -> tuple[str, str]:
    """Return both values; for commands only the words that differ."""
    if setting.name != "command" or setting.before is None or setting.after is None:
        return setting.before or "-", setting.after or "-"
    words = setting.before.split(), setting.after.split()
    shown: tuple[list[str], list[str]] = [], []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        for side, part in zip(shown, (words[0][i:i_end], words[1][j:j_end]), strict=True):
            side += ["..."] if kind == "equal" else part
    return " ".join(shown[0]), " ".join(shown[1])
