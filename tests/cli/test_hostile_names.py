"""Names that would steer a terminal, or a program that reads our output, come out as visible text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from training_sample import MIB, training
from xmem.cli.main import app

EVIL = "evil\x1b[2J\x1b]0;title\x07\x9b31m\r\n::stop-commands::x\n::error file=a::b\u202e"


def steering(output: str) -> bool:
    """Return whether a control character or a mark of direction is in the output."""
    return any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in output)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The sample, with every name of an operator, a module and a line made evil."""
    path = Path(training(3 * MIB).write(tmp_path / "trace.json"))
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if (
            event.get("cat") in ("cpu_op", "python_function", "user_annotation")
            and "ProfilerStep" not in event["name"]
        ):
            event["name"] = event["name"] + EVIL
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        "estimate T",
        "estimate T --gpu 1GiB --explain",
        "check job=T --budget 1MiB",
        "check job=T --budget 1MiB --format github",
        "inspect T",
        "inspect T --what operators",
        "diff T T",
        "report T --format terminal",
        "report T --format folded",
        "report T --format markdown",
        "advise T --gpu 1GiB",
        "tune T",
    ],
)
def test_no_output_has_a_control_character_or_a_forged_line(arguments: str, trace: Path) -> None:
    words = [word.replace("T", str(trace)) if word in ("T", "job=T") else word for word in arguments.split()]
    output = CliRunner().invoke(app, words).output
    assert output
    assert not steering(output)
    assert not any(line.lstrip().startswith(("::stop", "::error file=a::b")) for line in output.splitlines())
    assert "Traceback" not in output


@pytest.mark.parametrize("command", ["estimate", "check", "inspect", "replay", "report", "sweep"])
def test_nor_does_a_message_about_a_file(command: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{EVIL.replace('/', '')}.json"
    path.write_text("{")
    extra = {"sweep": ["-o", str(tmp_path / "o.csv")], "check": ["--budget", "1GiB"]}.get(command, [])
    result = CliRunner().invoke(app, [command, str(path), *extra])
    assert result.exit_code in (2, 3)
    assert not steering(result.output)
    assert not any(line.startswith("::") for line in result.output.splitlines())
