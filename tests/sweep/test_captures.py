"""A sweep about a command, from its captures on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweep_results import rows_of
from xmem.cli.main import app

SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
batch = parser.parse_args().batch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
print("training")
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(batch, 256).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_command_is_captured_fitted_and_swept(write_spec: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = json.dumps([sys.executable, str(script), "--batch", "{batch}"])
    job = f"command = {command}\nfit = {{ batch = [64, 96] }}\nmode = 'real'\niterations = 2"
    spec, output = write_spec("[grid]\nbatch = [64, 8192]\ngpu = 't4'", job), tmp_path / "out.jsonl"

    def sweep() -> dict[str, int]:
        result = CliRunner().invoke(app, ["sweep", str(spec), "-o", str(output), "--json"])
        assert result.exit_code == 0, result.output
        data: dict[str, int] = json.loads(result.stdout)
        return data

    assert (sweep()["captures_made"], sweep()["captures_reused"]) == (2, 2)
    small, large = rows_of(output)
    assert small["error"] is None
    activations = (8192 - 64) * (256 + 1024) * 4
    assert large["peak_allocated_bytes"] - small["peak_allocated_bytes"] >= activations
