"""The formats of ``xmem-fast report``, each one object: its name, its requirements and its writer.

To add one, write its module and register it in ``FORMATS``; command line, help and file endings follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, TypeAlias

from xmem.errors import ConfigError
from xmem.estimation.estimate import Estimate
from xmem.records import dataclass

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis
    from xmem.reports.tables import TableName

Source: TypeAlias = "Analysis | Estimate"


@dataclass(frozen=True)
class Wanted:
    """Choice of the optional contents of a report.

    Attributes:
        table: Table to write, for formats that hold one; None for the most detailed.
        with_advice: Whether to search for advice, for formats that show it.
        with_source: Whether to show the text of source lines, for formats that do.
    """

    table: TableName | None = None
    with_advice: bool = True
    with_source: bool = True


@dataclass(frozen=True)
class Written:
    """Summary of a report that was written.

    Attributes:
        count: Number of the items that the format counts.
        peak_reserved_bytes: Peak of the run as written.
    """

    count: int
    peak_reserved_bytes: int


@dataclass(frozen=True)
class ReportFormat:
    """A report format.

    Attributes:
        name: Name for ``--format``.
        endings: File endings of the format.
        write: Writes a report and returns the number of ``counted`` items in it, or a full summary.
        counted: Items that its size is given in.
        needs_trace: Whether it shows more than an estimate alone holds.
        is_binary: Whether it is for files only.
        is_table: Whether it holds one table.
        opened_with: Program to open it with.
        require: Raises ConfigError if something that writing needs is missing.
    """

    name: str
    endings: tuple[str, ...]
    write: Callable[[Source, IO[bytes], Wanted], int | Written]
    counted: str = "bytes"
    needs_trace: bool = False
    is_binary: bool = False
    is_table: bool = False
    opened_with: str = ""
    require: Callable[[], None] = lambda: None

    def written(self, source: Source, out: IO[bytes], wanted: Wanted) -> Written:
        """Write a report.

        Raises:
            OSError: The file cannot be written.
        """
        result = self.write(source, out, wanted)
        if isinstance(result, Written):
            return result
        return Written(result, _estimate(source).peak_reserved_bytes)


def format_named(name: str) -> ReportFormat:
    """Return the format that ``--format`` names.

    Raises:
        ConfigError: There is no format of this name.
    """
    found = next((each for each in FORMATS if each.name == name), None)
    if found is None:
        names = ", ".join(each.name for each in FORMATS)
        raise ConfigError(f"unknown format {name!r}", f"use one of {names}")
    return found


def format_of_file(name: str) -> ReportFormat | None:
    """Return the format whose ending a file's name has, the longest match first; None if there is none."""
    endings = {ending: each for each in FORMATS for ending in each.endings}
    fitting = [ending for ending in endings if name.endswith(ending)]
    return endings[max(fitting, key=len)] if fitting else None


def _estimate(source: Source) -> Estimate:
    return source if isinstance(source, Estimate) else source.estimate


def _analysis(source: Source) -> Analysis:
    assert not isinstance(source, Estimate), "formats that need a trace are refused without one"
    return source


def _html(source: Source, out: IO[bytes], wanted: Wanted) -> int:
    from xmem.advice import PAGE_BUDGET_S, advise
    from xmem.reports.html import page_of

    analysis = _analysis(source)
    advised = advise(analysis, budget_s=PAGE_BUDGET_S) if wanted.with_advice else None
    return out.write(page_of(analysis, advised=advised, with_source=wanted.with_source).encode())


def _terminal(source: Source, out: IO[bytes], _wanted: Wanted) -> int:
    import io

    from rich.console import Console

    from xmem.reports.terminal.summary import render

    text = io.StringIO()
    render(_estimate(source), Console(file=text, width=100))
    return out.write(text.getvalue().encode())


def _csv(source: Source, out: IO[bytes], wanted: Wanted) -> int:
    from xmem.reports.tables.columns import table_of
    from xmem.reports.tables.csv_table import write_csv

    return write_csv(table_of(source, wanted.table), out)


def _parquet(source: Source, out: IO[bytes], wanted: Wanted) -> int:
    from xmem.reports.tables.columns import table_of
    from xmem.reports.tables.parquet_table import write_parquet

    return write_parquet(table_of(source, wanted.table), out)


def _require_parquet() -> None:
    from xmem.reports.tables.parquet_table import require_pyarrow

    require_pyarrow()


def _memory_viz(source: Source, out: IO[bytes], _wanted: Wanted) -> Written:
    from xmem.reports.profiles.memory_viz import write_memory_viz

    return Written(*write_memory_viz(_analysis(source), out))


def _perfetto(source: Source, out: IO[bytes], _wanted: Wanted) -> int:
    from xmem.reports.profiles.perfetto import write_perfetto

    return write_perfetto(_analysis(source), out)


def _speedscope(source: Source, out: IO[bytes], _wanted: Wanted) -> int:
    from xmem.reports.profiles.speedscope import write_speedscope

    return write_speedscope(source, out)


def _flamegraph(source: Source, out: IO[bytes], _wanted: Wanted) -> int:
    from xmem.reports.profiles.folded_stacks import write_folded_stacks

    return write_folded_stacks(source, out)


def _tree(source: Source, out: IO[bytes], wanted: Wanted) -> int:
    from xmem.reports.terminal.tree import write_tree

    return write_tree(_analysis(source), out, with_source=wanted.with_source)


HTML = ReportFormat("html", (".html",), _html, needs_trace=True)
TERMINAL = ReportFormat("terminal", (".txt",), _terminal)
CSV = ReportFormat("csv", (".csv",), _csv, "rows", is_table=True)
PARQUET = ReportFormat(
    "parquet", (".parquet",), _parquet, "rows", is_binary=True, is_table=True, require=_require_parquet
)
MEMORY_VIZ = ReportFormat(
    "memory_viz",
    (".pickle", ".pkl"),
    _memory_viz,
    "events",
    needs_trace=True,
    is_binary=True,
    opened_with="open it at https://pytorch.org/memory_viz or by python -m torch.cuda._memory_viz",
)
PERFETTO = ReportFormat(
    "perfetto",
    (".json",),
    _perfetto,
    "events",
    needs_trace=True,
    opened_with="open it at https://ui.perfetto.dev or chrome://tracing",
)
SPEEDSCOPE = ReportFormat(
    "speedscope",
    (".speedscope.json",),
    _speedscope,
    "holders",
    opened_with="open it at https://www.speedscope.app",
)
FLAMEGRAPH = ReportFormat(
    "flamegraph",
    (".folded",),
    _flamegraph,
    "stacks",
    opened_with="draw it with flamegraph.pl, inferno-flamegraph or https://www.speedscope.app",
)
TREE = ReportFormat("tree", (".tree.json",), _tree, "modules", needs_trace=True)

FORMATS = (HTML, TERMINAL, CSV, PARQUET, MEMORY_VIZ, PERFETTO, SPEEDSCOPE, FLAMEGRAPH, TREE)
"""In the order in which help lists them."""
