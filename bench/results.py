"""Results as tables, on the terminal and in the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bars import Verdict, judge
from compare_readers import LABELS
from measure import MB

BEGIN = "<!-- written by bench/run.py: begin -->"
END = "<!-- written by bench/run.py: end -->"


@dataclass(frozen=True)
class Grid:
    """A table of texts; all columns but the first are figures."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def print_results(results: Mapping[str, Any], baseline: Mapping[str, float]) -> None:
    """Print all tables, the bars beside those of the baseline."""
    console = Console(width=110)
    console.print(machine_line(results["machine"]), highlight=False)
    for grid in (bars_beside(results, baseline), *measurements(results)):
        table = Table(title=grid.title, title_justify="left", box=box.SIMPLE)
        for index, column in enumerate(grid.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table, highlight=False)


def write_figures(results: Mapping[str, Any], page: Path) -> None:
    """Replace what stands between the marks of the page.

    Raises:
        ValueError: The page has no marks.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}")
    blocks = [machine_line(results["machine"])]
    for grid in (bars(results), *measurements(results)):
        header = f"| {' | '.join(grid.columns)} |\n|---|{'---:|' * (len(grid.columns) - 1)}"
        rows = "\n".join(f"| {' | '.join(row)} |" for row in grid.rows)
        blocks.append(f"**{grid.title}**\n\n{header}\n{rows}")
    figures = "\n\n".join(blocks)
    page.write_text(f"{before}{BEGIN}\n{figures}\n{END}{after}", encoding="utf-8")


def machine_line(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / (1 << 30):.0f} GiB, "
        f"{machine['os']}, Python {machine['python']}, {machine['compiler']}; {versions}."
    )


def bars(results: Mapping[str, Any]) -> Grid:
    verdicts = judge(results["figures"], {})
    return Grid("Bars", ("figure", "here", "bar", ""), [_verdict_row(verdict) for verdict in verdicts])


def bars_beside(results: Mapping[str, Any], baseline: Mapping[str, float]) -> Grid:
    return Grid(
        "Bars",
        ("figure", "here", "bar", "", "baseline", "change"),
        [
            (*_verdict_row(verdict), _number(verdict.baseline), _change(verdict))
            for verdict in judge(results["figures"], baseline)
        ],
    )


def measurements(results: Mapping[str, Any]) -> Iterator[Grid]:
    for readers in results["readers"]:
        yield Grid(
            f"Readers, {readers[0]['file_bytes'] / MB:,.0f} MB: reading alone and the whole process",
            ("reader", "MB/s", "min..max", "read s", "process s", "memory MB", "xmem is faster", "min..max"),
            [_reader_row(reader) for reader in readers],
        )
    estimates = list(results["estimates"].values())
    yield Grid(
        "xmem-fast estimate, by length of the trace: median seconds",
        ("", *(f"{one['text_bytes'] / MB:,.0f} MB" for one in estimates)),
        [
            ("events", *(f"{one['events']:,}" for one in estimates)),
            ("peak anonymous memory, MB", *(f"{one['peak_anonymous_bytes'] / MB:,.0f}" for one in estimates)),
            ("whole process", *(f"{one['process_s']['median']:.3f}" for one in estimates)),
            ("  min..max", *(_spread(one["process_s"], 3)[1] for one in estimates)),
            *(
                (stage, *(f"{one['stages_s'][stage]['median']:.3f}" for one in estimates))
                for stage in estimates[0]["stages_s"]
            ),
        ],
    )
    yield Grid(
        "Allocator replay",
        ("settings", "requests", "median ms", "M requests/s"),
        [
            (
                row["case"],
                f"{row['requests']:,}",
                f"{row['median_s'] * 1e3:.2f}",
                f"{row['requests'] / row['median_s'] / 1e6:.1f}",
            )
            for row in results["replay"]
        ],
    )
    yield Grid(
        "Else",
        ("figure", "median", "min..max"),
        [
            *(
                (f"read rate of {kind} over that of plain JSON", *_spread(ratio, 2))
                for kind, ratio in results["compressed"].items()
            ),
            (
                "four estimates in threads over one by one, times faster",
                *_spread(results["threads_speed_up"], 2),
            ),
            ("start-up, s", *_spread(results["startup_s"], 3)),
        ],
    )


def _verdict_row(verdict: Verdict) -> tuple[str, ...]:
    bar = verdict.bar
    return (
        bar.what,
        _number(verdict.value),
        f"{bar.bound} {bar.limit:g}",
        verdict.says,
    )


def _change(verdict: Verdict) -> str:
    return "" if verdict.change is None else f"{verdict.change:+.0%}" + (" (!)" if verdict.moved else "")


def _reader_row(reader: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        LABELS[reader["reader"]],
        *_spread(reader["mb_per_s"], 0),
        f"{reader['read_s']['median']:.3f}",
        f"{reader['process_s']['median']:.3f}",
        f"{reader['peak_anonymous_bytes'] / MB:,.0f}",
        *_spread(reader["xmem_is_times_faster"], 2),
    )


def _spread(spread: Mapping[str, float] | str, digits: int) -> tuple[str, str]:
    if isinstance(spread, str):
        return "", spread
    return (
        f"{spread['median']:,.{digits}f}",
        f"{spread['least']:,.{digits}f}..{spread['most']:,.{digits}f}",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
