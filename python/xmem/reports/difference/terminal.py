"""Comparison of two runs in a terminal: by how much, why, then the figures; plain text when piped."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xmem.difference import Difference, SizeChange
from xmem.difference.causes import factor
from xmem.reports.difference.phrases import (
    elided,
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

_TOP = 8
_MIN_WIDTH_FOR_ALL = 70
_STYLES = {"bad": " red", "good": " green", "same": ""}


def render(difference: Difference, console: Console) -> None:
    """Write a comparison to a console, which decides whether to show colours."""
    said = headline(difference)
    console.print(Text.assemble((said.lead, f"bold{_STYLES[said.tone]}"), f": {said.rest}"), soft_wrap=True)
    console.print()
    _print_settings(difference, console)
    _print_list("Why", [cause.text for cause in difference.causes], console)
    _print_sizes("Sizes", named_sizes(difference), console)
    _print_sizes("At the peak, by category", in_words(difference.category), console)
    _print_changed("Modules", grouped_modules(difference.module), console)
    _print_changed("Source lines", difference.source_line, console)
    _print_blocks(difference, console)
    _print_moved(difference, console)
    _print_list("Matched under a different name", renamed_in_words(difference), console)
    _print_list("Note", difference.notes, console)


def _print_settings(difference: Difference, console: Console) -> None:
    if not difference.settings:
        return
    table = _table("Different settings")
    for side in ("before", "after"):
        table.add_column(side, overflow="fold")
    for setting in difference.settings:
        before, after = elided(setting)
        table.add_row(spaced(setting.name), Text(before), Text(after))
    _print_table(table, console)


def _print_changed(title: str, changes: Sequence[SizeChange], console: Console) -> None:
    """Print the largest changes; nothing where there are none."""
    changed = [change for change in changes if change.change_bytes]
    if changed:
        _print_sizes(title, changed, console, top=_TOP)


def _print_sizes(title: str, changes: Sequence[SizeChange], console: Console, top: int | None = None) -> None:
    rows: list[list[str | Text]] = [
        [
            change.name,
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            _signed(change.change_bytes),
            factor(change.before_bytes, change.after_bytes),
        ]
        for change in changes[:top]
    ]
    rest = [] if top is None else changes[top:]
    if rest:
        total = sum(change.change_bytes for change in rest)
        rows.append([Text(f"{len(rest):,} more that changed", "dim"), "", "", _signed(total), ""])
    _print_figures(title, ("before", "after", "change", ""), rows, console)


def _print_blocks(difference: Difference, console: Console) -> None:
    rows: list[list[str | Text]] = []
    for change in difference.blocks[:_TOP]:
        sizes = (
            "-" if size is None else format_bytes(size) for size in (change.before_bytes, change.after_bytes)
        )
        who = " ".join(filter(None, (change.module, change.operator, change.source_line)))
        what = f"{spaced(change.category)} {who}"
        rows.append([what, f"{change.blocks:,}", *sizes, _signed(change.change_bytes)])
    if rows:
        _print_figures("Blocks at the peak", ("blocks", "before", "after", "change"), rows, console)


def _print_figures(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], console: Console
) -> None:
    """Print names with figures; on a narrow terminal only the current size and the change."""
    shown = [
        number
        for number, column in enumerate(columns, start=1)
        if console.width >= _MIN_WIDTH_FOR_ALL or column in ("after", "change")
    ]
    table = _table(title)
    for number in shown:
        table.add_column(columns[number - 1], justify="right", no_wrap=True)
    for name, *figures in rows:
        name_text = name if isinstance(name, Text) else Text(name)
        table.add_row(name_text, *(figures[number - 1] for number in shown))
    _print_table(table, console)


def _print_moved(difference: Difference, console: Console) -> None:
    if difference.peak_moved:
        moved = [
            f"before: {place(difference.peak_before)}",
            f"after: {place(difference.peak_after)}",
            *map(instant_in_words, difference.instants),
        ]
        _print_list("The peak moved", moved, console)


def _table(title: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(Text(title, "bold"), overflow="fold")
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
    return Text(
        format_change(change_bytes), "red" if change_bytes > 0 else "green" if change_bytes else "dim"
    )
