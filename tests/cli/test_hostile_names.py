"""Names that would steer a terminal, or a program that reads our output, come out as visible text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from training_sample import MIB, training
from xmem.cli.main import app

EVIL = "evil\x1b[2J\x1b]0;title\x07\x9b31m\r\n::stop-commands::x\n::error file=a::b\u202e"


def steering(output: str) -> bool:
    """Return whether a control character or a mark of direction is in the output."""
    return any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in output)


def evil(value: Any) -> Any:
    """JSON data with evil names of modules, files, operators and optimizers, wherever it names them."""
    if isinstance(value, dict):
        return {evil(key): evil(each) for key, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    if isinstance(value, str):
        for name in ("Net", "train", "aten::linear", "SGD"):
            value = value.replace(name, name + EVIL)
    return value


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: the sample, with every name in its events and notes made evil (``T``), an estimate
    with evil names (``E``), and the sample itself."""
    (tmp_path / "T").write_text(json.dumps(evil(json.loads(training(3 * MIB).bytes()))))
    training(3 * MIB).write(tmp_path / "good")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["estimate", "good", "-o", "estimate"]).exit_code == 0
    (tmp_path / "E").write_text(json.dumps(evil(json.loads((tmp_path / "estimate").read_text()))))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "estimate T",
        "estimate T --capacity 1GiB --explain",
        "estimate T --what-if zero_grad=after_step",
        "check T --budget 1MiB",
        "check T E --budget 1MiB --format github",
        *(f"inspect T {table}" for table in ("events", "operators", "blocks", "sequence", "segments")),
        "diff T good",
        "diff E T",
        "report T --format terminal",
        "report E --format terminal",
        *(f"report T --format csv --what {table}" for table in ("blocks", "breakdown", "timeline")),
        "advise T --capacity 1GiB",
        "tune T --capacity 1GiB",
    ],
)
@pytest.mark.usefixtures("folder")
def test_no_output_has_a_control_character_or_a_forged_line(arguments: str) -> None:
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code in (0, 1), result.output
    assert result.output
    assert not steering(result.output)
    forged = ("::stop", "::error file=a::b")
    assert not any(line.lstrip().startswith(forged) for line in result.output.splitlines())


@pytest.mark.parametrize("name", ["stacks.folded", "blocks.csv"])
def test_nor_has_a_file_of_lines(name: str, folder: Path) -> None:
    assert CliRunner().invoke(app, ["report", "T", "-o", name]).exit_code == 0
    lines = (folder / name).read_text().splitlines()
    assert any("evil" in line for line in lines)
    assert not any(steering(line) or line.startswith("::") for line in lines)


@pytest.mark.parametrize("command", ["estimate", "check", "inspect", "replay", "report", "sweep"])
def test_nor_does_a_message_about_a_file(command: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{EVIL.replace('/', '')}.json"
    path.write_text("{")
    extra = {"sweep": ["-o", str(tmp_path / "o.csv")], "check": ["--budget", "1GiB"]}.get(command, [])
    result = CliRunner().invoke(app, [command, str(path), *extra])
    assert result.exit_code in (2, 3)
    assert not steering(result.output)
    assert not any(line.startswith("::") for line in result.output.splitlines())
