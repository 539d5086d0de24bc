"""A command never writes over what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from training_sample import MIB, training
from xmem.cli.main import app

USAGE = 2


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Path(training(MIB).write(tmp_path / "trace.json"))


@pytest.mark.parametrize(
    "arguments",
    [
        "estimate T --html T",
        "estimate T -o T",
        "estimate T -o LINK",
        "estimate LINK -o T",
        "estimate HARD -o T",
        "estimate T -o FOLDER/../trace.json",
        "report T --format json -o T",
        "report T --what timeline --format csv -o T",
        "check job=T --budget 1GiB -o T",
        "diff T T --html T",
        "capture -o T -- python T",
        "run --keep-trace T -- python T",
        "fit T@batch=1 -o T",
        "check T --baseline T --update-baseline",
        "check PATTERN --budget 1GiB -o T",
        "check --config JOBS -o T",
    ],
)
def test_an_output_that_is_an_input_is_refused(arguments: str, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(trace)
    (tmp_path / "hard.json").hardlink_to(trace)
    (tmp_path / "folder").mkdir()
    (tmp_path / "jobs.toml").write_text('[check]\nbudget = "1GiB"\n[check.jobs.one]\ntrace = "trace.json"\n')
    before = trace.read_bytes()
    words = [
        word.replace("LINK", str(tmp_path / "link.json"))
        .replace("HARD", str(tmp_path / "hard.json"))
        .replace("FOLDER", str(tmp_path / "folder"))
        .replace("PATTERN", str(tmp_path / "t*.json"))
        .replace("JOBS", str(tmp_path / "jobs.toml"))
        .replace("T", str(trace))
        if word.isupper() or "=T" in word or "T@" in word or "FOLDER" in word
        else word
        for word in arguments.split()
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == USAGE, result.output
    assert "would overwrite" in result.output
    assert trace.read_bytes() == before


def test_two_outputs_need_two_files(trace: Path, tmp_path: Path) -> None:
    both = str(tmp_path / "both")
    result = CliRunner().invoke(app, ["estimate", str(trace), "-o", both, "--html", both])
    assert result.exit_code == USAGE
    assert "name the same file" in result.output
    assert not Path(both).exists()


def test_a_device_has_nothing_to_lose(trace: Path) -> None:
    result = CliRunner().invoke(app, ["estimate", str(trace), "-o", "/dev/null", "--html", "/dev/null"])
    assert result.exit_code in (0, USAGE)


@pytest.mark.parametrize("arguments", [["replay", "a\0b"], ["estimate", "T", "--gpu", "\0"]])
def test_a_nul_character_is_refused(arguments: list[str], trace: Path) -> None:
    result = CliRunner().invoke(app, [str(trace) if word == "T" else word for word in arguments])
    assert result.exit_code == USAGE
    assert "holds a NUL character" in result.output
