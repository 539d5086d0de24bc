"""One job on the CPU, moved to a GPU by the policies, and on that GPU as a phantom, with the same torch."""

import os
from pathlib import Path

import pytest

import xmem
from xmem.capture import PhantomMachine, capture

from ..conftest import NEWEST_FIRST

JOB = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(2000, 64), nn.RMSNorm(64)
        self.wide, self.plane, self.narrow = nn.Linear(64, 256), nn.BatchNorm2d(4), nn.Linear(256, 64)

    def forward(self, indices, picked):
        x = self.wide(self.norm(self.table(indices)))
        batch, length, width = x.shape
        x = self.narrow(self.plane(x.view(batch, length // 16, 16, width)[:, :4].contiguous()))
        return x.view(-1, 64)[picked].mean()

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    indices, picked = torch.randint(0, 2000, (64, 256)).cuda(), torch.randint(0, 1000, (5000,)).cuda()
    optimizer.zero_grad()
    model(indices, picked).backward()
    optimizer.step()
"""


@pytest.fixture(
    params=NEWEST_FIRST or [pytest.param("", marks=pytest.mark.skip("no CUDA build of torch here"))]
)
def python(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
def test_the_cpu_run_after_all_policies_needs_what_the_gpu_run_needs(python: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    peaks = {}
    for mode in ("real", "phantom"):
        machine = PhantomMachine() if mode == "phantom" else None
        with Path(os.devnull).open("w") as quiet:
            trace = capture(
                [python, str(script)],
                tmp_path / f"{mode}.json",
                mode=mode,
                machine=machine,
                stdout=quiet.fileno(),
                timeout_s=200,
            )
        estimate = xmem.estimate(trace.path, gpu="rtx-3060")
        peaks[mode] = estimate.peak_reserved_bytes, estimate.peak_allocated_bytes
    assert peaks["real"] == peaks["phantom"]
