"""Writes ``docs/accuracy.md`` and the shipped calibration from measured runs and estimates of them.

    python bench/accuracy/accuracy_page.py --runs RUNS.csv --estimates ESTIMATES.csv --docs docs/accuracy.md

The page shows the scorecard, the worst rows first, with what is known of them (``explanations.toml``).
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from xmem.errors import XmemError
from xmem.estimation.calibration import render as render_calibration
from xmem.files.writing import write_whole
from xmem.reports.accuracy.explanations import Explanation, explain, percent, read_explanations, today
from xmem.text.units import format_bytes
from xmem.validation.aggregate import experiment, sampling, summaries, variance, worst_first
from xmem.validation.estimates import WAYS, read_estimates
from xmem.validation.metrics import Judged, MethodResult, Summary
from xmem.validation.runs import read_runs
from xmem.validation.scorecard import Coverage, Scorecard, calibrate, score

EXPLANATIONS = Path(__file__).with_name("explanations.toml")

_CONFIDENCE = 0.99
_HEADER = (
    "Truth over estimate, less 1, of measured runs by way and kind; see xmem/estimation/calibration.py.\n"
    "Written by: bench/accuracy/accuracy_page.py --runs RUNS.csv --estimates ESTIMATES.csv --calibration FILE"
)

_WORDS = {
    "phantom": "phantom GPU: the job's own PyTorch on a simulated GPU",
    "fake": "capture of the whole job on the CPU, with nothing computed",
    "cpu": "capture of the whole job on the CPU",
    "fitted": "captures of the job at small batches on the CPU, and a fitted model",
}

_DEFINITIONS = """\
The definitions follow the xMem paper (Middleware '25, section 4.1). *Error*: the estimate minus the truth,
divided by the truth. The truth is what NVML measured in the first run, minus what was in use before it
started: the allocator's reserved memory, and what was loaded during the run. Failed runs have no truth.
*Failure*: a wrong verdict about running out of memory, or a second run, limited to the estimate, that runs
out of memory. Second runs cannot be made here. A second run counts as passed if its limit (the estimate with
the CUDA context, in whole percent of the card, as the authors did it) is at least the peak, or at least a
limit with which the authors saw the job finish. Otherwise it counts as failed (*unproven*: a job may finish
with less than its peak). *PEF*: the share of failures. *MCP*: the memory saved on average by trusting the
estimate; a failure loses the whole card. The 95th percentile is interpolated between rows. Published
estimates are used as published: those of xMem and DNNMem include the CUDA context (about 120 MiB), and the
truth does not. For image models, the truth leaves out what the allocator held when monitoring began, and so
do our estimates, but not those of other methods (docs/fidelity.md explains how we know this): this is up to
0.6 GiB, and 1 to 5% in most rows.
"""


def render_markdown(
    card: Scorecard, explanations: Sequence[Explanation], date: datetime.date | None = None
) -> str:
    """Return the page as Markdown.

    Args:
        card: The scorecard to show.
        explanations: Explanations of rows.
        date: Date of the figures; today by default (``SOURCE_DATE_EPOCH`` is honoured).
    """
    parts = [
        "# Accuracy",
        f"Estimates against {len(card.runs)} measured runs, {(date or today()).isoformat()}. "
        "Written by `bench/accuracy/accuracy_page.py`; do not edit.",
        _DEFINITIONS.rstrip(),
        "## All methods on the same runs",
        _table([_method(result) for result in (card.ours, *card.others)]),
        "For each run, `ours` takes the first of "
        + ", ".join(f"`{way}`" for way in WAYS)
        + " that has an estimate. "
        "A method's figures leave out the runs that it has no estimate for.",
        _silences(card.others),
        "## Our ways",
        _table([_method(result) for result in card.ways]),
        "\n".join(f"- `{result.method}`: {_WORDS[result.method]}" for result in card.ways),
        "## Upper bounds as requests to a scheduler",
        _table(
            [
                _coverage("as shipped", card.coverage),
                _coverage("calibrated on the other models only", card.held_out),
            ]
        ),
        "A bound is the estimate times a factor from the residuals of measured runs of the same way and kind "
        "(split conformal, one-sided; `xmem/estimation/calibration.py`). Each group has a few dozen rows, so "
        "beyond a confidence of n / (n + 1) the bound extrapolates the tail. The shipped calibration may "
        "include these very runs, so trust the second line: it bounds each model from the rows of all other "
        "models.",
        "## Worst rows first",
        _table([_row(row, explanations) for row in worst_first(card.ours.rows)]),
    ]
    if card.ours.unanswered:
        lines = [f"- {run.title}: {note or 'no estimate'}" for run, note in card.ours.unanswered]
        parts += ["## Without an estimate", "\n".join(lines)]
    parts.append("## By factor")
    for factor in ("model", "family", "optimizer", "gpu", "zero_grad", "set"):
        groups = summaries(card.ours.rows, factor).items()
        parts.append(_table([{factor: name, **_figures(summary)} for name, summary in groups]))
    parts += _experiments(card)
    return "\n\n".join(part for part in parts if part) + "\n"


def _silences(methods: Iterable[MethodResult]) -> str:
    """List the reasons why other methods have no estimate for some runs."""
    lines = []
    for result in methods:
        notes = Counter(note or "reason unknown" for _, note in result.unanswered)
        reasons = "; ".join(f"{note} ({count})" for note, count in notes.most_common())
        if reasons:
            lines.append(f"- {result.method}, runs without an estimate: {reasons}")
    return "\n".join(lines)


def _experiments(card: Scorecard) -> list[str]:
    parts = []
    systematic = experiment(card.ours.rows, "anova")
    explained = {
        factor: found
        for factor in ("model", "family", "optimizer", "gpu", "zero_grad")
        if (found := variance(systematic, factor)) is not None
    }
    if explained:
        parts += [
            "### Systematic runs: what explains the errors",
            "Share of the variance of the signed errors that each factor explains by itself (factors are not "
            "independent here, so shares do not add up), and F, the variance between groups over the "
            "variance within them.",
            _table(
                [
                    {
                        "factor": factor,
                        "values": str(found.groups),
                        "runs": str(found.rows),
                        "share": percent(found.explained),
                        "F": "" if found.f is None else f"{found.f:.1f}",
                    }
                    for factor, found in explained.items()
                ]
            ),
        ]
    drawn = experiment(card.ours.rows, "monte_carlo")
    redrawn = sampling(drawn)
    if redrawn is not None:
        error, failure, saved = (
            redrawn.median_relative_error,
            redrawn.failure_probability,
            redrawn.conserved_bytes,
        )
        lines = [
            f"- failures: {percent(failure.low)} to {percent(failure.high)}",
            f"- MCP: {format_bytes(round(saved.low))} to {format_bytes(round(saved.high))}",
        ]
        if error is not None:
            lines.insert(0, f"- median error: {percent(error.low)} to {percent(error.high)}")
        parts += [
            "### Random runs: how much the draw matters",
            f"The middle 95% of samples redrawn from the {len(drawn)} random runs:",
            "\n".join(lines),
        ]
    return parts


def _method(result: MethodResult) -> dict[str, str]:
    return {"method": result.method, **_figures(result.summary)}


def _figures(summary: Summary) -> dict[str, str]:
    saved = summary.conserved_bytes
    return {
        "runs": str(summary.runs),
        "median error": percent(summary.median_relative_error),
        "95th": percent(summary.p95_relative_error),
        "largest": percent(summary.max_relative_error),
        "median, signed": percent(summary.median_signed_error, signed=True),
        "too low": f"{summary.below_truth} of {summary.measured_runs}",
        "failures": str(summary.failures),
        "unproven": str(summary.failures_unproven),
        "PEF": percent(summary.failure_probability),
        "OOM foreseen": f"{summary.ooms_foreseen} of {summary.real_ooms}",
        "false OOM": str(summary.false_ooms),
        "MCP": "" if saved is None else format_bytes(round(saved)),
        "runtime": "" if summary.median_seconds is None else f"{summary.median_seconds:.2f} s",
    }


def _coverage(name: str, coverage: Coverage) -> dict[str, str]:
    return {
        "bounds": name,
        "confidence": percent(coverage.confidence),
        "runs": str(coverage.rows),
        "safe": percent(coverage.safe),
        "above the truth, median": percent(coverage.median_excess),
    }


def _row(row: Judged, explanations: Sequence[Explanation]) -> dict[str, str]:
    return {
        "run": row.run.title,
        "way": row.estimate.way,
        "estimate": "OOM" if row.predicts_oom else format_bytes(row.estimate_bytes),
        "truth": "OOM" if row.run.out_of_memory else format_bytes(row.run.peak_bytes),
        "error": percent(row.signed_error, signed=True),
        "verdict": "right" if row.verdict_is_right else "wrong",
        "second run": row.second_round.replace("_", " "),
        "explanation": explain(row, explanations),
    }


def _table(rows: Sequence[dict[str, str]]) -> str:
    """Format rows with the same keys as a Markdown table; empty without rows."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_escaped(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="measured runs, a .csv file")
    parser.add_argument("--estimates", type=Path, nargs="+", required=True, help="estimates of these runs")
    parser.add_argument("--explanations", type=Path, default=EXPLANATIONS, help="what is known of rows")
    parser.add_argument("--docs", type=Path, help="write the page")
    parser.add_argument("--calibration", type=Path, help="write the residuals that intervals are made from")
    asked = parser.parse_args(arguments)
    try:
        found = [row for path in asked.estimates for row in read_estimates(path)]
        card = score(read_runs(asked.runs), found, ways=WAYS, confidence=_CONFIDENCE)
        explanations = read_explanations(asked.explanations)
    except XmemError as error:
        print(f"accuracy_page: {error}", file=sys.stderr)
        return 2
    if asked.docs is not None:
        write_whole(asked.docs, render_markdown(card, explanations).encode())
    if asked.calibration is not None:
        write_whole(asked.calibration, render_calibration(calibrate(card.ways), _HEADER).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
