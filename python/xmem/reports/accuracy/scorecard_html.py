"""The scorecard as one self-contained page: tables that sort on click, and the plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from xmem.reports.accuracy import scorecard_plots
from xmem.reports.accuracy.explanations import Explanation, explain, percent, today
from xmem.text.units import format_bytes
from xmem.validation.aggregate import summaries, worst_first
from xmem.validation.metrics import Judged, Summary
from xmem.validation.scorecard import Scorecard

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid #8884; }
th { cursor: pointer; position: sticky; top: 0; background: Canvas; }
td.number { text-align: right; }
tr.wrong td { background: #d33b; color: white; }
img { max-width: 100%; background: white; }
.scroll { overflow-x: auto; }
"""
# Sorts by the number behind a cell where it has one, else by its text.
_SCRIPT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const up = head.dataset.up = head.dataset.up === "1" ? "" : "1";
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)], difference = parseFloat(x) - parseFloat(y);
    return isNaN(difference) ? x.localeCompare(y) : difference;
  };
  [...body.rows].sort((a, b) => up ? order(a, b) : order(b, a)).forEach(row => body.append(row));
}));
"""

Cell = tuple[str, float | None]


def render_html(card: Scorecard, explanations: Sequence[Explanation]) -> str:
    """Return the page; without matplotlib it has no plots and says so."""
    methods = [card.ours, *card.ways, *card.others]
    sections = [
        f"<h1>Accuracy on {len(card.runs)} measured runs</h1><p>{today().isoformat()}</p>",
        "<h2>Methods</h2>",
        _table([{"method": _text(result.method), **_figures(result.summary)} for result in methods]),
        _bounds(card),
        _plots(card),
        "<h2>Runs</h2>",
        _table(
            [_row(row, explanations) for row in worst_first(card.ours.rows)],
            [not row.verdict_is_right for row in worst_first(card.ours.rows)],
        ),
    ]
    if card.ours.unanswered:
        items = "".join(
            f"<li>{html.escape(run.title)}: {html.escape(note or 'no estimate')}</li>"
            for run, note in card.ours.unanswered
        )
        sections.append(f"<h2>Without an estimate</h2><ul>{items}</ul>")
    for factor in ("model", "family", "optimizer", "gpu", "zero_grad"):
        groups = summaries(card.ours.rows, factor).items()
        sections.append(f"<h2>By {factor.replace('_', ' ')}</h2>")
        sections.append(_table([{factor: _text(name), **_figures(summary)} for name, summary in groups]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>xMem accuracy</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(sections)}<script>{_SCRIPT}</script></body></html>\n"
    )


def _bounds(card: Scorecard) -> str:
    shown = {"as shipped": card.coverage, "calibrated on the other models only": card.held_out}
    return "<h2>Upper bounds</h2>" + _table(
        [
            {
                "bounds": _text(name),
                "confidence": _share(found.confidence),
                "runs": _number(found.rows),
                "safe": _share(found.safe),
                "above the truth, median": _share(found.median_excess),
            }
            for name, found in shown.items()
        ]
    )


def _plots(card: Scorecard) -> str:
    if not scorecard_plots.is_available():
        return "<p>No plots: they need matplotlib (<code>pip install 'xmem-fast[plots]'</code>).</p>"
    return "".join(
        f'<h2>{name.replace("_", " ").capitalize()}</h2><img alt="{name}" src="data:image/png;base64,'
        f'{base64.b64encode(png).decode()}">'
        for name, png in scorecard_plots.draw(card).items()
    )


def _figures(summary: Summary) -> dict[str, Cell]:
    return {
        "runs": _number(summary.runs),
        "median error": _share(summary.median_relative_error),
        "95th": _share(summary.p95_relative_error),
        "largest": _share(summary.max_relative_error),
        "too low": _number(summary.below_truth),
        "failures": _number(summary.failures),
        "unproven": _number(summary.failures_unproven),
        "PEF": _share(summary.failure_probability),
        "OOM foreseen": (f"{summary.ooms_foreseen} of {summary.real_ooms}", summary.ooms_foreseen),
        "false OOM": _number(summary.false_ooms),
        "MCP": _bytes(summary.conserved_bytes),
    }


def _row(row: Judged, explanations: Sequence[Explanation]) -> dict[str, Cell]:
    return {
        "run": _text(row.run.title),
        "family": _text(row.run.family),
        "way": _text(row.estimate.way),
        "estimate": _bytes(row.estimate_bytes),
        "truth": ("out of memory", None) if row.run.out_of_memory else _bytes(row.run.peak_bytes),
        "error": (percent(row.signed_error, signed=True), row.error),
        "verdict": _text("right" if row.verdict_is_right else "wrong"),
        "second run": _text(row.second_round.replace("_", " ")),
        "policies": _text(
            ", ".join(f"{name} {format_bytes(size)}" for name, size in row.estimate.policies.items())
        ),
        "explanation": _text(explain(row, explanations)),
    }


def _text(text: str) -> Cell:
    return text, None


def _number(number: int) -> Cell:
    return str(number), number


def _share(share: float | None) -> Cell:
    return percent(share), share


def _bytes(size: float | None) -> Cell:
    return ("", None) if size is None else (format_bytes(round(size)), size)


def _table(rows: Sequence[Mapping[str, Cell]], wrong: Sequence[bool] = ()) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    marks = [' class="wrong"' if mark else "" for mark in wrong] or [""] * len(rows)
    body = "".join(
        f"<tr{mark}>{''.join(map(_cell, row.values()))}</tr>" for mark, row in zip(marks, rows, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    text, value = cell
    attributes = "" if value is None else f' class="number" data-value="{value:.9g}"'
    return f"<td{attributes}>{html.escape(text)}</td>"
