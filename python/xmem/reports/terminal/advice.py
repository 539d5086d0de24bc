"""Advice in a terminal: the total saving, then each remedy with the line to change and its cost."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xmem.advice import Advice, Advised
from xmem.text.units import format_bytes


def render(advised: Advised, console: Console) -> None:
    """Write the advice to a console, which decides whether to show colours."""
    console.print(_headline(advised), soft_wrap=True)
    if advised.advice:
        console.print()
        console.print(_table(advised))
    combination = advised.combination
    if combination is not None:
        console.print()
        console.print(Text("Together (*), as replayed:", "bold"))
        options = [*(f"--what-if {text}" for text in combination.what_if)]
        if combination.alloc_conf is not None:
            options.append(f"--alloc-conf {combination.alloc_conf}")
        for option in options:
            console.print(Padding(Text(option), (0, 0, 0, 2)), soft_wrap=True)
    console.print()
    console.print(Text(_foot(advised), "dim"), soft_wrap=True)


def _headline(advised: Advised) -> Text:
    of = f"the {format_bytes(advised.peak_reserved_bytes)} that the job reserves"
    if advised.refused and not advised.tried:
        return Text.assemble(("No advice", "bold"), f": {advised.refused[0][1]}")
    if not advised.advice:
        return Text.assemble(("Nothing tried helps", "bold"), f": no remedy lowers {of}")
    best = advised.combination or advised.advice[0]
    how = "all of * together" if advised.combination else "the first remedy"
    fits = ""
    if advised.fits is False:
        fits = "; the job then fits" if advised.can_fit else "; the job still does not fit"
    return Text.assemble(
        (f"Saves {format_bytes(best.saved_bytes)}", "bold green" if advised.can_fit is not False else "bold"),
        f" of {of}: {how}{fits}",
    )


def _table(advised: Advised) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("saved", justify="right", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("remedy", overflow="fold")
    for advice in advised.advice:
        table.add_row(
            format_bytes(advice.saved_bytes),
            format_bytes(advice.peak_reserved_bytes),
            "*" if advice.in_combination else "",
            _remedy(advice),
        )
    return table


def _remedy(advice: Advice) -> Text:
    where = f"{advice.where}: " if advice.where else ""
    return Text.assemble(
        (advice.text, "bold"), f"\n{where}{advice.change}\n", (f"cost: {advice.cost}", "dim")
    )


def _foot(advised: Advised) -> str:
    said = f"{advised.tried} remedies replayed"
    if advised.refused:
        said += f"; {len(advised.refused)} cannot be applied to this trace (--json says why)"
    if advised.left_out:
        said += f"; {len(advised.left_out)} left out, the time was up (--budget)"
    return said
