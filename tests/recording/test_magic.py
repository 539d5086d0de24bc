"""The cell magic, in an IPython of this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython", reason="IPython is not installed")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

CELL = """
def double(x):
    return x * 2
made = double(torch.ones(1 << 16))
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "xmem")
    shell.run_cell("import torch")
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_is_run_recorded_and_reported(
    shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "estimate.json"
    shell.run_cell_magic("xmem", f"--gpu rtx-3060 --json {output}", CELL)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "RTX 3060" in printed.out
    assert shell.user_ns["made"].sum() == 2 << 16
    estimate = shell.user_ns["_xmem"].estimate
    assert estimate.peak_allocated_bytes == 2 * (4 << 16)
    line = next(iter(estimate.breakdown.source_line))
    assert line.startswith("<ipython-input-")
    text = shell.user_ns["_xmem"].analysis.stages.trace.metadata["lines"]
    assert {row["text"] for row in text.values()} == {
        "return x * 2",
        "made = double(torch.ones(1 << 16))",
    }
    assert output.exists()


def test_a_cell_that_fails_has_no_result(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("xmem", "", "torch.ones(3)\nraise ZeroDivisionError('so')")
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert not shell.user_ns["_xmem"].is_recorded


def test_a_wrong_option_is_told_in_a_line(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell_magic("xmem", "--gpu no-such-gpu", "x = 1")
    assert "no-such-gpu" in capsys.readouterr().err
    assert "x" not in shell.user_ns
