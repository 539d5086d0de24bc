"""The gate's answer on GitHub: workflow commands, which mark lines of a change, and the summary of a job.

Workflow commands: docs.github.com/actions/reference/workflow-commands-for-github-actions. In their values
``%``, CR and LF are escaped, in their properties ``:`` and ``,`` too.
"""

from __future__ import annotations

from collections.abc import Sequence

from xmem.gate.judge import CheckOutcome, Finding
from xmem.reports.gate.places import place_of
from xmem.reports.gate.text import facts, shown_rows, summary, title


def commands(outcomes: Sequence[CheckOutcome]) -> str:
    """Return an ``::error`` for each broken limit, on the line to look at first; empty when all passed."""
    return "".join(f"{_error(outcome, found)}\n" for outcome in outcomes for found in outcome.findings)


def step_summary(outcomes: Sequence[CheckOutcome]) -> str:
    """Return Markdown for ``$GITHUB_STEP_SUMMARY``: a table of the jobs, and the holders in failed ones."""
    lines = ["### GPU memory", "", "| job | answer | |", "|---|---|---|"]
    for outcome in outcomes:
        mark = "passed" if outcome.passed else "**failed**"
        lines.append(f"| {_cell(title(outcome))} | {mark} | {_cell(facts(outcome))} |")
    for outcome in outcomes:
        for finding in outcome.findings:
            lines += ["", f"**{_escaped(title(outcome))}**: {_escaped(finding.message)}"]
            for words, rows in shown_rows(finding):
                lines += ["", f"| {words} | |", "|---|--:|"]
                lines += [f"| {_cell(name)} | {size} |" for size, name in rows]
    return "\n".join([*lines, "", f"{summary(outcomes)}.", ""])


def _error(outcome: CheckOutcome, finding: Finding) -> str:
    place = place_of(finding, outcome.source)
    properties = {} if place is None else {"file": place.path, "line": str(place.line)}
    properties["title"] = f"GPU memory of {title(outcome)}"
    message = [f"{title(outcome)}: {finding.message}"]
    for words, rows in shown_rows(finding):
        message.append(f"{words}: {', '.join(f'{size} {name}' for size, name in rows)}")
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::error {written}::{_data(chr(10).join(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """Escape names such as ``__main__`` and ``<lambda>``, which Markdown and HTML would interpret."""
    for character in "\\`*_<>[]":
        text = text.replace(character, f"\\{character}")
    return text
