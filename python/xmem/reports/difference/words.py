"""How a comparison is said: what the text and the page have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from xmem.difference import Difference, Instant, Setting, SizeChange
from xmem.difference.names import pattern
from xmem.estimate_result import Peak
from xmem.units import format_bytes
from xmem.words import spaced

SIZE_NAMES = {
    "device_peak": "Device peak",
    "context": "  CUDA context",
    "peak_reserved": "  reserved",
    "peak_allocated": "    allocated at its peak",
    "beyond_allocated": "    reserved beyond it",
    "peak_requested": "Requested by tensors",
}


@dataclass(frozen=True)
class Headline:
    """By how much the device peak changed, in a few words and then in full."""

    lead: str
    rest: str
    tone: Literal["worse", "better", "same"]


def headline(difference: Difference) -> Headline:
    """By how much the device peak changed, and what became of the verdict."""
    device = difference.size("device_peak")
    before, after = format_bytes(device.before_bytes), format_bytes(device.after_bytes)
    verdict = ""
    if difference.fits_before is not None and difference.fits_before != difference.fits_after:
        verdict = {True: "; it fits now", False: "; it no longer fits", None: ""}[difference.fits_after]
    change = device.change_bytes
    if change == 0:
        allocated = difference.size("peak_allocated").change_bytes
        more = "more" if allocated > 0 else "less"
        part = f", of which {format_bytes(abs(allocated))} {more} is allocated" if allocated else ""
        return Headline("Same peak", f"{after} of GPU memory in both runs{part}{verdict}", "same")
    share = f" ({change / device.before_bytes:+.1%})" if device.before_bytes else ""
    return Headline(
        f"{'Grew' if change > 0 else 'Shrank'} by {format_bytes(abs(change))}{share}",
        f"{before} of GPU memory before, {after} after{verdict}",
        "worse" if change > 0 else "better",
    )


def grouped_modules(modules: Sequence[SizeChange]) -> list[SizeChange]:
    """Modules that differ by numbers in their paths as one row each, most change first."""
    groups: dict[str, list[SizeChange]] = defaultdict(list)
    for module in modules:
        groups[pattern(module.name)].append(module)
    rows = [
        SizeChange(
            f"{name} ({len(group)})" if len(group) > 1 else group[0].name,
            sum(module.before_bytes for module in group),
            sum(module.after_bytes for module in group),
        )
        for name, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-abs(row.change_bytes), -row.after_bytes))


def place(peak: Peak | Instant) -> str:
    """``backward, aten::mm at train.py:59 (GPT.head)``."""
    words = spaced(peak.phase)
    if peak.operator:
        words += f", {peak.operator}"
    if peak.source_line:
        words += f" at {peak.source_line}"
    return f"{words} ({peak.module})" if peak.module else words


def instant_in_words(instant: Instant) -> str:
    """What both runs held at the place of one's peak."""
    which = "first" if instant.peak_of == "before" else "second"
    found = "" if instant.found_by == "path" else f", the other run at the like {instant.found_by}"
    before, after = format_bytes(instant.before_bytes), format_bytes(instant.after_bytes)
    return f"where the {which} run peaks{found}: {before} allocated before, {after} after"


def renamed_in_words(difference: Difference) -> list[str]:
    """How many names were aligned, with an example of each kind."""
    words = []
    for kind, noun in (("module", "modules"), ("source_line", "source lines")):
        names = [name for name in difference.renamed if name.kind == kind]
        if names:
            words.append(f"{len(names):,} {noun}, such as {names[0].before} as {names[0].after}")
    return words


def elided(setting: Setting) -> tuple[str, str]:
    """Both values, of commands only the words that differ."""
    if setting.name != "command" or setting.before is None or setting.after is None:
        return setting.before or "-", setting.after or "-"
    words = setting.before.split(), setting.after.split()
    shown: tuple[list[str], list[str]] = [], []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        for side, part in zip(shown, (words[0][i:i_end], words[1][j:j_end]), strict=True):
            side += ["..."] if kind == "equal" else part
    return " ".join(shown[0]), " ".join(shown[1])
