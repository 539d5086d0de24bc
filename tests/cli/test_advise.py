"""``xmem-fast advise`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import xmem_fast
from whatif.nested_sample import nested


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return nested(iterations=3).write(tmp_path / "trace.json")


def test_text_gives_the_line_to_change_and_its_price(trace: Path) -> None:
    result = xmem_fast("advise", trace, "--gpu", "rtx-3060")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Saves ")
    assert "release=/job/train.py:8" in result.stdout
    assert "cost: none" in result.stdout
    assert "remedies replayed" in result.stdout


def test_narrow_terminals_and_no_color(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    result = xmem_fast("advise", trace)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    table = result.stdout.split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= 50


def test_json(trace: Path) -> None:
    result = xmem_fast("advise", trace, "--capacity", "4GiB", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert list(data)[:2] == ["schema_version", "path"]
    assert data["fits"] is True
    assert data["advice"][0]["saved_bytes"] > 0


def test_a_job_that_nothing_makes_fit(trace: Path) -> None:
    context = json.loads(xmem_fast("estimate", trace, "--capacity", "4GiB", "--json").stdout)["context_bytes"]
    result = xmem_fast("advise", trace, "--capacity", f"{context + (4 << 20)}")
    assert result.exit_code == 1
    assert "the job still does not fit" in result.stdout


def test_no_time(trace: Path) -> None:
    result = xmem_fast("advise", trace, "--budget", "0")
    assert result.exit_code == 0
    assert "left out, the time was up (--budget)" in result.stdout


def test_what_ifs_of_the_caller_come_first(trace: Path) -> None:
    result = xmem_fast("advise", trace, "--what-if", "release=train.py:8", "--json")
    texts = [advice["what_if"] for advice in json.loads(result.stdout)["advice"]]
    assert "release=/job/train.py:8" not in texts


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--what-if", "checkpoint=Nothing"], 3, "no module 'Nothing'"),
        (["--gpu", "no-such-gpu"], 2, "no-such-gpu"),
        (["--budget", "-1"], 2, "--budget"),
    ],
)
def test_bad_input(trace: Path, arguments: list[str], status: int, message: str) -> None:
    result = xmem_fast("advise", trace, *arguments)
    assert result.exit_code == status
    assert message in result.stderr
