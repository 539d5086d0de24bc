"""The table of stacks and its page belong together. Runs without the stacks' environments."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from stacks.page import PAGE, outcome_of, page_of
from stacks.rows import ENVIRONMENTS, SCRIPTS, Row, all_rows, selected_rows
from stacks.runner import Result

ROW = Row(name="made", title="Made", group="Group", environment="language", packages=("torch",))
RESULT = Result(
    name="made",
    digest="",
    date="2026-01-01",
    ended="exited",
    exit_status=0,
    wall_s=1.0,
    host_peak_bytes=2**30,
    versions={"torch": "2.12.0"},
    need_bytes=300,
    measured_reserved_bytes=200,
    replay_reserved_bytes=200,
    context_bytes=100,
    replay_agrees=True,
)


def test_the_page_has_each_row_once() -> None:
    named = re.findall(r"^\| .*\(`([\w-]+)`\) \|", PAGE.read_text(), re.MULTILINE)
    assert named == [row.name for row in all_rows()]


def test_the_page_promises_what_the_bars_ask() -> None:
    outcomes = re.findall(r"^\| .*\(`[\w-]+`\) \|[^|]*\|[^|]*\| ([\w ]+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(outcomes) >= 40
    assert outcomes.count("works") >= 34
    assert "wrong" not in outcomes


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.name)
def test_what_a_row_names_is_there(row: Row) -> None:
    if not row.environment:
        assert row.note
        return
    assert (ENVIRONMENTS / f"{row.environment}.txt").exists()
    for word in (*row.command, *row.prepare):
        if "SCRIPTS/" in word:
            assert (SCRIPTS / word.removeprefix("SCRIPTS/")).exists()


def test_versions_are_pinned() -> None:
    for file in ENVIRONMENTS.glob("*.txt"):
        for line in file.read_text().splitlines():
            assert line.startswith("#") or "==" in line, f"{file.name}: {line}"


def test_rows_are_selected_by_name_group_and_environment() -> None:
    assert [row.name for row in selected_rows("trl-dpo,of-no-row")] == ["trl-dpo"]
    assert {row.group for row in selected_rows("hugging")} == {"Hugging Face"}
    assert "litgpt" in {row.name for row in selected_rows("language")}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "works"),
        ({"exit_status": 1, "fits": False}, "works"),
        ({"replay_agrees": False}, "wrong"),
        ({"need_bytes": 299}, "wrong"),
        ({"need_bytes": None, "exit_status": 3, "message": "no such thing here"}, "refused"),
        ({"need_bytes": None, "exit_status": 3, "message": "something else"}, "fails"),
        ({"ended": "time", "exit_status": 130}, "fails"),
        ({"ended": "no such thing", "exit_status": 130}, "does not end"),
    ],
)
def test_outcomes(changes: dict[str, object], outcome: str) -> None:
    row = replace(ROW, refused="no such thing") if outcome in ("refused", "fails", "does not end") else ROW
    assert outcome_of(row, replace(RESULT, **changes)) == outcome  # type: ignore[arg-type]


def test_a_reason_has_the_scripts_last_error() -> None:
    said = "xmem-fast: the script failed\nTraceback\nValueError: first\nRuntimeError: last\n  0%| 0/6"
    assert replace(RESULT, need_bytes=None, message=said).reason == "the script failed; RuntimeError: last"


def test_the_page_says_what_fails() -> None:
    failed = replace(RESULT, need_bytes=None, exit_status=3, message="xmem-fast: no\nRuntimeError: because")
    page = page_of([ROW], {"made": failed})
    assert "1 rows: 1 fails" in page
    assert "no; RuntimeError: because" in page
