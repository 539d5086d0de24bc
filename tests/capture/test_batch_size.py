"""The largest batch of a function, recorded on the CPU at two small sizes, against recordings of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .conftest import needs_torch

pytestmark = needs_torch

SCRIPT = """
import json, sys
import torch, xmem

def train_step(batch_size):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(batch_size, 64, 256)).square().mean().backward()
    optimizer.step()

if len(sys.argv) > 2:  # what a recording at this batch needs
    with xmem.record(device="fake") as recorder:
        for _ in range(3):
            train_step(int(sys.argv[2]))
    print(xmem.estimate(recorder.trace_path, capacity="2GiB").fits)
else:
    found = xmem.find_batch_size(train_step, capacity="2GiB", effective_batch=360, device="fake")
    print(json.dumps([found.size, found.accumulation, found.largest, found.device_peak_bytes]))
"""


def ran(script: Path, *arguments: str) -> str:
    """The last line that the script prints."""
    done = subprocess.run(
        [sys.executable, str(script), "-", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_largest_batch_of_a_function_fits_and_the_next_does_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    size, accumulation, largest, need = json.loads(ran(script))
    assert size * accumulation == 360
    assert size <= largest
    assert need <= 2 << 30
    assert ran(script, str(largest)) == "True"
    assert ran(script, str(largest + max(1, largest // 20))) == "False"
