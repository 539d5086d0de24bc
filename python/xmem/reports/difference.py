"""Two runs compared, in a terminal: by how much, why, then the figures; plain text when piped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xmem.difference import Difference, Instant, SizeChange
from xmem.difference.names import pattern
from xmem.estimate_result import Peak
from xmem.units import format_bytes, format_change

_TOP = 8
_SIZE_NAMES = {
    "device_peak": "Device peak",
    "context": "  CUDA context",
    "peak_reserved": "  reserved",
    "peak_allocated": "    allocated at its peak",
    "beyond_allocated": "    reserved beyond it",
    "peak_requested": "Requested by tensors",
}


def render(difference: Difference, console: Console) -> None:
    """Write a comparison to a console; whether it shows colours is the console's business."""
    console.print(headline(difference), soft_wrap=True)
    console.print()
    _print_settings(difference, console)
    _print_list("Why", [cause.text for cause in difference.causes], console)
    sizes = [
        SizeChange(label, size.before_bytes, size.after_bytes)
        for name, label in _SIZE_NAMES.items()
        for size in [difference.size(name)]
    ]
    _print_sizes("Sizes", sizes, console, top=len(sizes))
    _print_sizes("At the peak, by category", difference.category, console, top=len(difference.category))
    _print_sizes("Modules", grouped_modules(difference.module), console, top=_TOP)
    _print_sizes("Source lines", difference.source_line, console, top=_TOP)
    _print_blocks(difference, console)
    _print_moved(difference, console)
    _print_list("Aligned under another name", renamed_in_words(difference), console)
    _print_list("Note", difference.notes, console)


def headline(difference: Difference) -> Text:
    """By how much the device peak changed, and what became of the verdict."""
    device = difference.size("device_peak")
    before, after = format_bytes(device.before_bytes), format_bytes(device.after_bytes)
    change = device.change_bytes
    if change == 0:
        text = Text.assemble(("Same peak", "bold"), f": {after} of GPU memory in both runs")
    else:
        verb, style = ("Grew", "bold red") if change > 0 else ("Shrank", "bold green")
        share = f" ({change / device.before_bytes:+.1%})" if device.before_bytes else ""
        text = Text.assemble(
            (f"{verb} by {format_bytes(abs(change))}{share}", style),
            f": {before} of GPU memory before, {after} after",
        )
    if difference.fits_before is not None and difference.fits_before != difference.fits_after:
        now = {True: "; it fits now", False: "; it no longer fits", None: ""}[difference.fits_after]
        text.append(now, "bold")
    return text


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
    words = peak.phase.replace("_", " ")
    if peak.operator:
        words += f", {peak.operator}"
    if peak.source_line:
        words += f" at {peak.source_line}"
    return f"{words} ({peak.module})" if peak.module else words


def instant_in_words(instant: Instant) -> str:
    """What both runs held at the place of one's peak."""
    which = "first" if instant.peak_of == "before" else "second"
    found = "" if instant.found_by == "line" else f", the other run at the like {instant.found_by}"
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


def factor(change: SizeChange) -> str:
    """``x2.00``, or whether it is new or gone."""
    if change.before_bytes == 0:
        return "new" if change.after_bytes else ""
    if change.after_bytes == 0:
        return "gone"
    return f"x{change.after_bytes / change.before_bytes:.2f}"


def _print_settings(difference: Difference, console: Console) -> None:
    if not difference.settings:
        return
    table = _table("What differs in the question", "before", "after", justify="left")
    for setting in difference.settings:
        table.add_row(setting.name.replace("_", " "), setting.before or "-", setting.after or "-")
    _print_table(table, console)


def _print_sizes(title: str, changes: Sequence[SizeChange], console: Console, *, top: int) -> None:
    table = _table(title, "before", "after", "change", "")
    for change in changes[:top]:
        table.add_row(
            change.name.replace("_", " ") if title.endswith("category") else change.name,
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            _signed(change.change_bytes),
            factor(change),
        )
    rest = changes[top:]
    if rest:
        total = sum(change.change_bytes for change in rest)
        table.add_row(Text(f"{len(rest):,} more", "dim"), "", "", _signed(total), "")
    _print_table(table, console)


def _print_blocks(difference: Difference, console: Console) -> None:
    if not difference.blocks:
        return
    table = _table("Blocks at the peak", "blocks", "before", "after", "change")
    for change in difference.blocks[:_TOP]:
        sizes = (
            "-" if size is None else format_bytes(size) for size in (change.before_bytes, change.after_bytes)
        )
        who = " ".join(filter(None, (change.module, change.operator, change.source_line)))
        what = f"{change.category.replace('_', ' ')} {who}"
        table.add_row(what, f"{change.blocks:,}", *sizes, _signed(change.change_bytes))
    _print_table(table, console)


def _print_moved(difference: Difference, console: Console) -> None:
    if difference.peak_moved:
        moved = [
            f"before: {place(difference.peak_before)}",
            f"after: {place(difference.peak_after)}",
            *map(instant_in_words, difference.instants),
        ]
        _print_list("The peak moved", moved, console)


def _table(title: str, *columns: str, justify: str = "right") -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(Text(title, "bold"), overflow="fold")
    for column in columns:
        wide = justify == "left"
        table.add_column(column, justify="left" if wide else "right", no_wrap=not wide, overflow="fold")
    return table


def _print_table(table: Table, console: Console) -> None:
    console.print(table)
    console.print()


def _print_list(title: str, items: Sequence[str], console: Console) -> None:
    if not items:
        return
    console.print(Text(title, "bold"))
    for item in items:
        row = Table.grid(padding=(0, 1))
        row.add_row("-", Text(item))
        console.print(Padding(row, (0, 0, 0, 2)))
    console.print()


def _signed(change_bytes: int) -> Text:
    return Text(format_change(change_bytes), "red" if change_bytes > 0 else "green" if change_bytes else "dim")
