"""``docs/accuracy.md``: the scorecard as a page, the worst rows first, with what is known of them."""

from __future__ import annotations

import datetime
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmem.errors import ConfigError
from xmem.units import format_bytes
from xmem.validation.aggregate import experiment, sampling, summaries, variance, worst_first
from xmem.validation.estimates import WAYS
from xmem.validation.metrics import Judged, MethodResult, Summary
from xmem.validation.scorecard import Coverage, Scorecard

EXPLANATIONS = Path("bench") / "accuracy" / "explanations.toml"
_FIELDS = ("model", "optimizer", "batch_size", "gpu", "way")

_WORDS = {
    "phantom": "phantom GPU: the job's own PyTorch on a described GPU",
    "cpu": "capture of the whole job on the CPU",
    "fitted": "captures of the job at small batches on the CPU, and a fitted model",
}

_DEFINITIONS = """\
Definitions, those of the xMem paper (Middleware '25, section 4.1). *Error*: estimate less truth over truth,
where the truth is what NVML saw beyond the start of the first run: the allocator's reserved memory and what
was loaded on the way. Runs that failed have no truth. *Failure*: a wrong verdict about running out of
memory, or a second run, limited to the estimate, that runs out. Second runs cannot be made here: one counts
as passed if its limit (the estimate with the CUDA context, in whole per cents of the card as the authors
did it) is at least the peak, or at least a limit under which the authors saw the job finish, and as failed
otherwise (*unproven*: a job may finish with less than its peak). *PEF*: share of failures. *MCP*: memory
saved on average by trusting the estimate, where a failure loses the whole card. The 95th percentile is
interpolated between rows. Published estimates are taken as published: those of xMem and DNNMem hold the
CUDA context (about 120 MiB), which the truth does not. Of image models the truth leaves out what the
allocator held when monitoring began, and so do our estimates, not those of other methods
(docs/fidelity.md says how this is known): up to 0.6 GiB, 1 to 5% of most rows.
"""


@dataclass(frozen=True)
class Explanation:
    """Why rows are as they are.

    Attributes:
        matches: What a row must have to be meant, by the names of ``_FIELDS``.
        text: The evidence.
    """

    matches: dict[str, str]
    text: str

    def is_of(self, row: Judged) -> bool:
        """Whether a row is meant; a model's name may be given without its owner."""
        cells = {
            "model": row.run.model.rpartition("/")[2],
            "optimizer": row.run.optimizer,
            "batch_size": str(row.run.batch),
            "gpu": row.run.gpu,
            "way": row.estimate.way,
        }
        return all(
            value in cells[name] if name == "gpu" else value.rpartition("/")[2] == cells[name]
            for name, value in self.matches.items()
        )


def read_explanations(path: Path | None = None) -> tuple[Explanation, ...]:
    """Explanations from a file: tables ``[[explanation]]`` of a text and what a row must have.

    Args:
        path: The file; by default that of the checkout, if there is one.

    Raises:
        ConfigError: The file cannot be read, or has something else in it.
    """
    if path is None:
        if not EXPLANATIONS.is_file():
            return ()
        path = EXPLANATIONS
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"the explanations {path} cannot be read ({error})", "write them as a TOML file"
        ) from error
    found = []
    for number, table in enumerate(tables.get("explanation", ()), 1):
        matches = {name: str(value) for name, value in table.items() if name != "text"}
        if not isinstance(table.get("text"), str) or not matches or set(matches) - set(_FIELDS):
            raise ConfigError(
                f"{path}: explanation {number} is invalid",
                f"give it a text, and some of {', '.join(_FIELDS)} to choose rows by",
            )
        found.append(Explanation(matches, " ".join(table["text"].split())))
    return tuple(found)


def explain(row: Judged, explanations: Iterable[Explanation]) -> str:
    """What is known of a row: its own note, then every explanation of it."""
    return "; ".join(
        [*filter(None, [row.estimate.note]), *(known.text for known in explanations if known.is_of(row))]
    )


def render_markdown(
    card: Scorecard, explanations: Sequence[Explanation], date: datetime.date | None = None
) -> str:
    """The page.

    Args:
        card: What it shows.
        explanations: Of rows.
        date: Of the figures; today's by default (``SOURCE_DATE_EPOCH`` is honoured).
    """
    parts = [
        "# Accuracy",
        f"Estimates against {len(card.runs)} measured runs, {(date or today()).isoformat()}. "
        "Written by `xmem-fast validate --runs RUNS.csv --estimates ESTIMATES.csv "
        "--write-docs docs/accuracy.md`; do not edit.",
        _DEFINITIONS.rstrip(),
        "## All methods on the same runs",
        _table([_method(result) for result in (card.ours, *card.others)]),
        "`ours` takes of each run the first of "
        + ", ".join(f"`{way}`" for way in WAYS)
        + " that has an estimate. "
        "Runs that a method has no estimate of are not in its figures.",
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
        "A bound is the estimate times what the residuals of measured runs of the same way and kind say "
        "(split conformal, one-sided; `xmem/calibration.py`). Each group has some tens of rows, so beyond a "
        "confidence of n / (n + 1) the bound rests on a continued tail. The shipped calibration may rest on "
        "these very runs; the second line is the honest one: each model's bounds come from the rows of all "
        "other models.",
        "## Worst rows first",
        _table([_row(row, explanations) for row in worst_first(card.ours.rows)]),
    ]
    if card.ours.unanswered:
        lines = [f"- {run.title}: {note or 'no estimate'}" for run, note in card.ours.unanswered]
        parts += ["## Without an estimate", "\n".join(lines)]
    parts.append("## By what was varied")
    for factor in ("model", "family", "optimizer", "gpu", "zero_grad", "set"):
        groups = summaries(card.ours.rows, factor).items()
        parts.append(_table([{factor: name, **_figures(summary)} for name, summary in groups]))
    parts += _experiments(card)
    return "\n\n".join(part for part in parts if part) + "\n"


def today() -> datetime.date:
    """The date that a page is of."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
    return datetime.datetime.now(datetime.UTC).date()


def _silences(methods: Iterable[MethodResult]) -> str:
    """Why other methods say nothing of some runs."""
    lines = []
    for result in methods:
        notes = Counter(note or "nothing known" for _, note in result.unanswered)
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
            "Share of the variance of the signed errors that lies between the values of each factor by "
            "itself (factors are not independent here, so shares do not add up), and F, the variance between "
            "over that within.",
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
            "### Random runs: had others been drawn",
            f"Where 95 of 100 samples lie that are redrawn from the {len(drawn)} random runs:",
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


def percent(share: float | None, *, signed: bool = False) -> str:
    """A share as text, empty for None."""
    if share is None:
        return ""
    return f"{share:+.2%}" if signed else f"{share:.2%}"


def _table(rows: Sequence[dict[str, str]]) -> str:
    """Rows with the same keys as a Markdown table; empty without rows."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_escaped(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
