"""The gate's answer in a terminal: one line per job, with the holders of the bytes below a failed one."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.text import Text

from xmem.gate.judge import CheckOutcome, Finding, Rule
from xmem.gate.limits import Metric
from xmem.printable import one_line
from xmem.text.units import format_bytes, format_change
from xmem.text.words import spaced

TOP = 3
"""Most rows of a kind to show."""

_KINDS = {"category": "categories", "module": "modules", "source_line": "lines"}
_SIZE_WIDTH = 12


def render(outcomes: Sequence[CheckOutcome], console: Console) -> None:
    """Write the answer to a console, which decides whether to show colours.

    Lines are not broken, so that a search of a log finds whole paths.
    """
    for outcome in outcomes:
        mark = Text("ok    ", "green") if outcome.passed else Text("FAIL  ", "bold red")
        _print(Text.assemble(mark, (title(outcome), "bold"), f": {facts(outcome)}"), console)
        for finding in outcome.findings:
            _print(Text.assemble("      ", finding.message), console)
            _print_holders(finding, console)
    if len(outcomes) > 1:
        passed = all(outcome.passed for outcome in outcomes)
        _print(Text(summary(outcomes), "bold green" if passed else "bold red"), console)


def plain(outcomes: Sequence[CheckOutcome]) -> str:
    """Return the same as the contents of a file."""
    written = StringIO()
    render(outcomes, Console(file=written, color_system=None))
    return written.getvalue()


def title(outcome: CheckOutcome) -> str:
    """Return a title such as ``gpt2 on RTX 3060 12 GB``."""
    return one_line(outcome.name if outcome.gpu is None else f"{outcome.name} on {outcome.gpu}")


def summary(outcomes: Sequence[CheckOutcome]) -> str:
    """Describe how many jobs failed."""
    failed = sum(not outcome.passed for outcome in outcomes)
    total = len(outcomes)
    checks = "1 check" if total == 1 else f"{total} checks"
    return f"{failed} of {checks} failed" if failed else f"{checks} passed"


def facts(outcome: CheckOutcome) -> str:
    """Describe the figure relative to each limit: ``device peak 3.43 GiB, 57% of the budget of ...``."""
    if outcome.estimate is None:
        return "no answer"
    limits, verdict = outcome.limits, outcome.estimate.verdict
    bound = "upper bound of the " if limits.upper else ""
    parts = [f"{bound}{limits.metric.words} {format_bytes(outcome.bytes)}"]
    if limits.budget_bytes is not None:
        share = outcome.bytes / limits.budget_bytes
        parts.append(f"{share:.0%} of the budget of {format_bytes(limits.budget_bytes)}")
    if verdict is not None:
        parts.append(str(outcome.estimate.fits_in_words))
    if outcome.doubt is not None:
        parts.append(outcome.doubt[:1].lower() + outcome.doubt[1:])
    if outcome.baseline is not None:
        change_bytes = outcome.estimated_bytes - outcome.baseline_bytes
        parts.append(f"{format_change(change_bytes)} against {one_line(str(outcome.baseline.path))}")
    if limits.metric is Metric.DEVICE_PEAK and verdict is None:
        parts.append("no GPU named: without the CUDA context")
    return ", ".join(parts)


def shown_rows(finding: Finding) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the rows to show of each kind: its name in words, and sizes with names, largest first."""
    sign = format_change if finding.rule is Rule.GREW else format_bytes
    return [
        (words, [(sign(size), spaced(name) if kind == "category" else name) for name, size in rows])
        for kind, words in _KINDS.items()
        if (rows := list(finding.bytes_by.get(kind, {}).items())[:TOP])
    ]


def _print_holders(finding: Finding, console: Console) -> None:
    for words, rows in shown_rows(finding):
        heading = f"{words} that grew" if finding.rule is Rule.GREW else f"{words} at the peak"
        _print(Text(f"        {heading}", "dim"), console)
        for size, name in rows:
            _print(Text(f"        {size:>{_SIZE_WIDTH}}  {name}"), console)


def _print(text: Text, console: Console) -> None:
    console.print(text, soft_wrap=True, highlight=False)
