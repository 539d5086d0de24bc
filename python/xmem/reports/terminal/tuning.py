"""A search for allocator settings in a terminal: the line to paste, its cost, then the runners-up."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from xmem.advice.tuning import SettingsOutcome, Tuning
from xmem.text.units import format_bytes

_SHOWN = 5


def render(tuning: Tuning, console: Console, possible: Tuning | None = None) -> None:
    """Write the best settings and their cost to a console, which decides whether to show colours.

    Args:
        tuning: What is certain.
        console: Where to write.
        possible: For a trace that begins in the middle of a run, the search as if the run had begun with it.
    """
    console.print(
        _headline(tuning, "Nothing is sure to help" if possible else "Nothing helps"), soft_wrap=True
    )
    console.print()
    if tuning.best is not None:
        console.print(Text(f"  {tuning.best.environment_line}", "bold"), soft_wrap=True)
        console.print()
        console.print(Text(f"Costs  {_price(tuning.best, tuning.defaults)}"), soft_wrap=True)
        console.print()
    for line in _table([tuning.defaults, *tuning.ranked[:_SHOWN]]):
        console.print(line, soft_wrap=True)
    if possible is not None:
        console.print()
        console.print(Text(_open(tuning, possible), "yellow"), soft_wrap=True)
    console.print()
    fit = f"{tuning.fitting:,} of {tuning.candidates:,} settings fit"
    console.print(Text(f"Rules of torch {tuning.torch_version}; {fit}; equal outcomes are shown once", "dim"))


def _headline(tuning: Tuning, nothing: str) -> Text:
    best, defaults, gpu = tuning.best, tuning.defaults, tuning.device.name
    if best is None:
        if defaults.fits:
            why = f"PyTorch's defaults take {format_bytes(defaults.peak_reserved_bytes)} on {gpu}"
            return Text.assemble((nothing, "bold"), f": {why}, and no setting saves 1% of it")
        why = f"the job needs a GPU of {format_bytes(defaults.smallest_capacity_bytes)}, not {gpu}"
        return Text.assemble((nothing, "bold red"), f": {why}, and no setting saves 1% of it")
    if not best.fits:
        least = format_bytes(best.smallest_capacity_bytes)
        instead = format_bytes(defaults.smallest_capacity_bytes)
        return Text.assemble(
            (f"Does not fit on {gpu}", "bold red"),
            f" with any setting; the best needs a GPU of {least} instead of {instead}",
        )
    peak = format_bytes(best.peak_reserved_bytes)
    if not defaults.fits:
        instead = format_bytes(defaults.smallest_capacity_bytes)
        return Text.assemble(
            (f"Fits on {gpu} with this setting", "bold green"),
            f", which takes {peak} there; the defaults need a GPU of {instead}",
        )
    saved = format_bytes(tuning.saved_peak_bytes)
    of = format_bytes(defaults.peak_reserved_bytes)
    return Text.assemble((f"Saves {saved}", "bold green"), f" of the {of} that the defaults take on {gpu}")


def _open(tuning: Tuning, possible: Tuning) -> str:
    """Return what the memory before a trace leaves open."""
    why = (
        "The trace begins in the middle of the run. All that was reserved before it is counted as in use at "
        "one time, which no setting lowers."
    )
    if possible.best is None or possible.best.peak_reserved_bytes >= tuning.defaults.peak_reserved_bytes:
        return f"{why} The recorded part alone would not save more"
    return (
        f"{why} The recorded part alone takes {format_bytes(possible.best.peak_reserved_bytes)} with "
        f"{possible.best.alloc_conf}, and {format_bytes(possible.defaults.peak_reserved_bytes)} with the "
        "defaults: a run that it shows whole may save as much; record from the start of the process to know"
    )


def _price(best: SettingsOutcome, defaults: SettingsOutcome) -> str:
    return (
        f"{best.device_allocations:,} device allocations against {defaults.device_allocations:,}, "
        f"{best.retries:,} retries against {defaults.retries:,}"
    )


def _table(outcomes: Sequence[SettingsOutcome]) -> list[Text]:
    rows = [
        ("peak reserved", "fragmentation", "smallest GPU", "device allocs", "retries", "setting"),
        *(
            (
                format_bytes(outcome.peak_reserved_bytes) + ("" if outcome.fits else "*"),
                format_bytes(outcome.fragmentation_bytes),
                format_bytes(outcome.smallest_capacity_bytes),
                f"{outcome.device_allocations:,}",
                f"{outcome.retries:,}",
                outcome.alloc_conf or "(defaults)",
            )
            for outcome in outcomes
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for number, row in enumerate(rows):
        *figures, setting = row
        aligned = "  ".join(text.rjust(width) for text, width in zip(figures, widths, strict=True))
        lines.append(Text(f"{aligned}  {setting}", "bold" if number == 0 else ""))
    if not all(outcome.fits for outcome in outcomes):
        lines.append(Text("* does not fit: the size is for a GPU with unlimited memory", "dim"))
    return lines
