"""``xmem-fast report`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from training_sample import training
from xmem.cli.main import app


def xmem_fast(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="xmem-fast")
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training().write(tmp_path / "trace.json")


@pytest.mark.parametrize(
    "settings", [(), ("--alloc-conf", "expandable_segments:True"), ("--gpu", "rtx-3060")]
)
def test_what_is_written_agrees_with_the_simulator(
    settings: tuple[str, ...], trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.pickle"
    result = xmem_fast("report", trace, "--format", "memory_viz", "-o", file, *settings)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{file}: ")
    assert "memory_viz" in result.stderr
    replayed = xmem_fast("replay", file, "--torch", "2.13")
    assert replayed.exit_code == 0
    assert replayed.stdout.startswith("Agree: all ")


def test_a_run_that_does_not_fit_ends_out_of_memory(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.pickle"
    result = xmem_fast("report", trace, "-o", file, "--gpu", "rtx-3060", "--capacity", "160MiB", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert next(iter(data)) == "schema_version"
    assert (data["path"], data["format"], data["fits"]) == (str(file), "memory_viz", False)
    replayed = xmem_fast("replay", file, "--json")
    assert replayed.exit_code == 0
    (device,) = json.loads(replayed.stdout)["devices"]
    assert (device["events"], device["peak_reserved_bytes"]) == (data["events"], data["peak_reserved_bytes"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "-o"),
        (("-o", "x.pickle", "--format", "svg"), "svg"),
        (("-o", "/", "--format", "memory_viz"), "Is a directory"),
        (("-o", "x.pickle", "--alloc-conf", "no_such_key:1"), "no_such_key"),
    ],
)
def test_usage(
    arguments: tuple[str, ...], says: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = xmem_fast("report", trace, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_bad_input(tmp_path: Path) -> None:
    result = xmem_fast("report", tmp_path / "missing.json", "-o", tmp_path / "x.pickle")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "missing.json" in result.stderr
