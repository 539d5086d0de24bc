"""Output of ``check``: on stdout, in a file, and to GitHub."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from xmem.cli import output
from xmem.cli.exit_codes import ExitCode
from xmem.files.writing import naming, write_whole

if TYPE_CHECKING:
    from xmem.gate.judge import CheckOutcome


class CheckFormat(StrEnum):
    """Format in which the answer is written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def give(outcomes: Sequence[CheckOutcome], written_as: CheckFormat, file: Path | None) -> None:
    """Write the answer, and end the command with its status.

    Raises:
        typer.Exit: Always.
        ConfigError: A file cannot be written; the answer has been printed nevertheless.
    """
    from xmem.reports.gate import text

    on_github = written_as is CheckFormat.GITHUB or (
        file is not None and os.environ.get("GITHUB_ACTIONS") == "true"
    )
    if file is not None or written_as in (CheckFormat.TEXT, CheckFormat.GITHUB):
        text.render(outcomes, output.console())
        if on_github:
            from xmem.reports.gate import github

            typer.echo(github.commands(outcomes), nl=False)
    else:
        typer.echo(_written(outcomes, written_as), nl=False)
        for outcome in outcomes:
            if outcome.error is not None:
                output.note(str(outcome.error))
    if file is not None:
        with naming(f"-o {file}"):
            write_whole(file, _written(outcomes, written_as).encode())
    if on_github:
        _append_step_summary(outcomes)
    raise typer.Exit(_status(outcomes))


def _status(outcomes: Sequence[CheckOutcome]) -> ExitCode:
    if any(outcome.estimate is None for outcome in outcomes):
        return ExitCode.BAD_INPUT
    return ExitCode.DONE if all(outcome.passed for outcome in outcomes) else ExitCode.DOES_NOT_FIT


def _written(outcomes: Sequence[CheckOutcome], written_as: CheckFormat) -> str:
    """Return the answer as the contents of a file."""
    if written_as is CheckFormat.JSON:
        value = {
            "schema_version": 1,
            "passed": all(outcome.passed for outcome in outcomes),
            "checks": [outcome.to_json() for outcome in outcomes],
        }
        return json.dumps(value, indent=2) + "\n"
    if written_as is CheckFormat.SARIF:
        from xmem import __version__
        from xmem.reports.gate.sarif import sarif_log

        return json.dumps(sarif_log(outcomes, __version__), indent=2) + "\n"
    from xmem.reports.gate import github, text

    written = text.plain(outcomes)
    return written + github.commands(outcomes) if written_as is CheckFormat.GITHUB else written


def _append_step_summary(outcomes: Sequence[CheckOutcome]) -> None:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    from xmem.reports.gate import github

    with naming(f"GITHUB_STEP_SUMMARY={summary}"), Path(summary).open("a", encoding="utf-8") as file:
        file.write(github.step_summary(outcomes))
