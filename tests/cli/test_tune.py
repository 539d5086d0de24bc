"""``xmem-fast tune`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import xmem_fast
from xmem.simulation.alloc_conf import parse
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20


@pytest.fixture
def fragmenting(tmp_path: Path) -> Path:
    """A step whose blocks grow, so that no cached segment serves the next one."""
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1, versions={"torch": "2.13.0"})
    trace.iteration(0, 0, 200).operator("aten::mul", 1, 99)
    for step in range(8):
        trace.alloc(0x1000 + step, (12 + 8 * step) * MIB, 2 + 10 * step).free(0x1000 + step, 7 + 10 * step)
    trace.annotation("Optimizer.step#SGD.step", 110, 120)
    return trace.write(tmp_path / "trace.json")


def test_text_gives_the_line_to_paste_and_its_price(fragmenting: Path) -> None:
    result = xmem_fast("tune", fragmenting, "--gpu", "rtx-3060")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("Saves ")
    (line,) = (line for line in result.stdout.splitlines() if "export" in line)
    variable, _, setting = line.strip().removeprefix("export ").partition("=")
    assert variable == "PYTORCH_CUDA_ALLOC_CONF"
    parse(setting, "2.13")
    assert "device allocations against 8, 0 retries against 0" in result.stdout
    assert "(defaults)" in result.stdout
    assert "Rules of torch 2.13" in result.stdout


def test_json(fragmenting: Path) -> None:
    result = xmem_fast("tune", fragmenting, "--capacity", "4GiB", "--torch", "2.6", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert next(iter(data)) == "schema_version"
    assert (data["gpu"], data["capacity_bytes"], data["torch_version"]) == (None, 4 << 30, "2.6")
    assert data["candidates"] >= 200
    assert data["best"] == data["ranked"][0]
    assert data["environment_line"] == f"export PYTORCH_CUDA_ALLOC_CONF={data['best']['alloc_conf']}"
    saved = data["defaults"]["peak_reserved_bytes"] - data["best"]["peak_reserved_bytes"]
    assert data["saved_peak_bytes"] == saved > 100 * MIB


def test_a_gpu_on_which_nothing_fits(fragmenting: Path) -> None:
    result = xmem_fast("tune", fragmenting, "--gpu", "rtx-3060", "--capacity", "180MiB")
    assert result.exit_code == 1
    assert "GPU of" in result.stdout
    assert "* does not fit" in result.stdout


def test_nothing_helps(tmp_path: Path) -> None:
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1)
    trace.iteration(0, 0, 200).alloc(0x1000, 400 * MIB, 2).annotation("Optimizer.step#SGD.step", 110, 120)
    result = xmem_fast("tune", trace.write(tmp_path / "trace.json"), "--gpu", "rtx-3060")
    assert result.exit_code == 0
    assert result.stdout.startswith("Nothing helps: PyTorch's defaults take ")
    assert "export" not in result.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--gpu NAME or --capacity SIZE"),
        (("--gpu", "abacus"), "abacus"),
        (("--capacity", "bananas"), "bananas"),
        (("--gpu", "rtx-3060", "--torch", "1.4"), "1.4"),
    ],
)
def test_usage(options: tuple[str, ...], says: str, fragmenting: Path) -> None:
    result = xmem_fast("tune", fragmenting, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_bad_input(tmp_path: Path) -> None:
    result = xmem_fast("tune", tmp_path / "missing.json", "--gpu", "rtx-3060")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "missing.json" in result.stderr
