"""What commands import: start-up is most of a small estimate. Modules are counted, not seconds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training_sample import training
from xmem.cli.exit_codes import ExitCode
from xmem.testing.trace_builder import TraceBuilder

# Of other packages, each heavy, and needed by few commands.
_HEAVY = {"torch", "pydantic", "pandas", "rich", "jinja2", "ray", "matplotlib", "concurrent.futures"}

# What an estimate may need, but one of a script's trace with no option does not.
_FOR_FEW_ESTIMATES = {
    "numpy.ma",  # np.unique of values alone imports it
    "importlib.metadata",
    "importlib.resources",
    "email",
    "sqlite3",
    "tempfile",
    "zipfile",
    "xmem.cudnn.planner",
    "xmem.whatif.parse",
}


def imported(*arguments: str) -> set[str]:
    """Run the command in a process of its own, and return the names of the modules that it has imported."""
    script = (
        "import atexit, json, sys\n"
        "before = set(sys.modules)\n"  # also what .pth files of the environment import
        "atexit.register(lambda: print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr))\n"
        "from xmem.cli.start import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    modules: list[str] = json.loads(process.stderr.splitlines()[-1])
    return set(modules)


def test_the_version_needs_no_numpy_and_no_command() -> None:
    modules = imported("--version")
    assert modules.isdisjoint(_HEAVY | {"numpy", "typer", "importlib.metadata", "email"})
    assert {name for name in modules if name.startswith("xmem.")} == {"xmem.cli", "xmem.cli.start"}


def test_the_help_needs_no_estimate() -> None:
    modules = imported("--help")
    assert modules.isdisjoint({"torch", "pydantic", "pandas", "ray", "matplotlib", "importlib.metadata"})
    assert "xmem.estimation.pipeline" not in modules


@pytest.mark.parametrize("option", ["--version", "--help"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_what_cannot_be_written_is_an_error(option: str) -> None:
    command = [sys.executable, "-m", "xmem.cli.start", option]
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert process.returncode == ExitCode.BAD_INPUT
    assert "cannot write: No space left on device" in process.stderr


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_nobody_reads_ends_as_a_closed_pipe(option: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "xmem.cli.start", option]
    try:
        process = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (process.returncode, process.stderr) == (ExitCode.BROKEN_PIPE, "")


def test_an_estimate_as_json_imports_what_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    training().write(file)
    modules = imported("estimate", str(file), "--json")
    assert modules.isdisjoint(_HEAVY | _FOR_FEW_ESTIMATES)
    commands = {name for name in modules if name.startswith("xmem.cli.commands.")}
    assert commands == {"xmem.cli.commands.estimate"}
    of_others = {
        name for name in modules if re.match(r"xmem\.(capture|scaling|sweep|advice|reports)\b", name)
    }
    assert of_others == {"xmem.reports", "xmem.reports.schedulers"}


def test_an_estimate_of_a_trace_of_gpus_imports_no_masked_arrays(tmp_path: Path) -> None:
    trace = TraceBuilder().operator("aten::empty", 5, 50)
    for gpu in range(2):
        trace.alloc(0x1000, 3 << 20, 10, device_type=1, device_index=gpu)
    file = tmp_path / "trace.json"
    trace.write(file)
    assert imported("estimate", str(file), "--json").isdisjoint(_HEAVY | {"numpy.ma"})


def test_files_of_the_command_line_need_no_pydantic(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    training().write(file)
    modules = imported("estimate", str(file), "-o", str(tmp_path / "estimate.json"), "--json")
    assert modules.isdisjoint(_HEAVY | _FOR_FEW_ESTIMATES - {"tempfile"})
