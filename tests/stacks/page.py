"""Write docs/stacks.md from the results of runs: ``cd tests && python -m stacks.page``."""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path

from stacks.__main__ import ROOT, results_folder
from stacks.rows import Row, all_rows
from stacks.runner import GIB, Result, read_result

PAGE = ROOT / "docs" / "stacks.md"
# Where the runs were made is nobody's concern.
_ABSOLUTE = re.compile(r"/\S*?/(?=tests/stacks/|site-packages/|lib/python3|\.stacks/)")

_HEAD = """\
# Stacks that were tried

`make test-stacks` writes this page; do not edit it. Each row runs a training stack the way its users
start it, at small shapes, with weights and data made up on the spot. The command is `xmem-fast run --gpu
GPU -- COMMAND` on the [phantom GPU](phantom.md), on a machine without a GPU. The commands are in
`tests/stacks/stacks.toml`, the scripts in `tests/stacks/scripts`, the versions in
`tests/stacks/environments`.

A row **works** if xMem gives an estimate, if its replay equals PyTorch's own allocator to the byte, and
if the need is at least what PyTorch measured plus the CUDA context. Times are from 2 shared cores. Host
memory is the most that all processes of the run held together.

{counts}
"""

_COLUMNS = """
| stack | versions | GPUs | outcome | needs | PyTorch measured | time | host |
|---|---|---|---|---|---|---|---|
"""


def outcome_of(row: Row, result: Result | None) -> str:
    """What a run found, in the words of the page."""
    if not row.environment:
        return "not installed"
    if result is None:
        return "not run"
    if not result.worked:
        if row.refused and row.refused in result.message + result.reason:
            return "refused" if result.ended == "exited" else "does not end"
        return "fails"
    return "wrong" if problems_of(result) else "works"


def problems_of(result: Result) -> list[str]:
    """What is wrong with an estimate, in words; empty where it is right."""
    problems = []
    if result.replay_agrees is not True:
        problems.append(
            f"PyTorch measured {_size(result.measured_reserved_bytes)}, the replay says "
            f"{_size(result.replay_reserved_bytes)}"
        )
    if result.need_bytes is not None and result.measured_reserved_bytes is not None:
        held = result.measured_reserved_bytes + (result.context_bytes or 0)
        if result.need_bytes < held:
            problems.append(
                f"the need of {_size(result.need_bytes)} is below the {_size(held)} that the card held"
            )
    return problems


def page_of(rows: list[Row], results: dict[str, Result]) -> str:
    """The page as Markdown."""
    outcomes = [outcome_of(row, results.get(row.name)) for row in rows]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    dates = sorted(result.date for result in results.values())
    when = f" Runs of {dates[0]} to {dates[-1]}." if dates else ""
    parts = [_HEAD.format(counts=f"{len(rows)} rows: {counts}.{when}")]
    for group, members in groupby(rows, key=lambda row: row.group):
        of_group = list(members)
        parts.append(f"\n## {group}\n{_COLUMNS}")
        parts += [_line(row, results.get(row.name)) for row in of_group]
        notes = [_note(row, results.get(row.name)) for row in of_group]
        if any(notes):
            parts.append("\n" + "".join(notes))
    return "".join(parts)


def _line(row: Row, result: Result | None) -> str:
    outcome = outcome_of(row, result)
    cells = [f"{row.title} (`{row.name}`)", "", str(row.gpus), outcome, "", "", "", ""]
    if result is not None:
        cells[1] = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        cells[2] = f"{row.gpus} {row.gpu}"
        cells[6] = f"{result.wall_s:.0f} s"
        cells[7] = _size(result.host_peak_bytes)
        if result.worked:
            cells[4] = _size(result.need_bytes)
            cells[5] = _size(result.measured_reserved_bytes)
    return "| " + " | ".join(cells) + " |\n"


def _note(row: Row, result: Result | None) -> str:
    outcome = outcome_of(row, result)
    said = row.note
    if result is not None and outcome == "wrong":
        said = f"{'; '.join(problems_of(result))}. {said}"
    elif result is not None and outcome in ("fails", "refused", "does not end"):
        reason = _ABSOLUTE.sub("", result.reason)[:400].replace("`", "'")
        said = f"{said} It ends with: `{reason}`."
    return (
        f"- **{row.name}** {'' if outcome == 'works' else outcome}: {said.strip()}\n".replace(" :", ":")
        if said
        else ""
    )


def _size(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.3f} GiB"


def main() -> None:
    """Write the page."""
    rows = all_rows()
    found = {row.name: read_result(results_folder() / "results" / f"{row.name}.json") for row in rows}
    results = {name: result for name, result in found.items() if result is not None}
    missing = [row.name for row in rows if row.environment and row.name not in results]
    if missing:
        print(f"no result of {', '.join(missing)}: run `make test-stacks`", file=sys.stderr)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(page_of(rows, results))


if __name__ == "__main__":
    main()
