"""``xmem.record`` on a GPU: what it measures is what PyTorch's own allocator says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import xmem
from xmem import _core

from ..conftest import Phantom

# The core is compiled for the Python of the tests; others cannot record themselves.
PACKAGES = [Path(xmem.__file__).parent.parent, Path(_core.__file__ or "").parent]

PROGRAM = """
    import json, sys
    import torch
    from torch import nn
    import xmem
    xmem.__path__.extend(json.loads(sys.argv[1])[1:])

    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(64, 256), torch.zeros(64, dtype=torch.int64)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()

    step()
    torch.cuda.reset_peak_memory_stats()
    with xmem.record(gpu="rtx-3060") as recorder:
        step()
        step()
    torch_says = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    with torch.no_grad(), xmem.record() as inference:
        output = model(x.cuda())
    recorder.write_trace(sys.argv[2])
    estimate = recorder.estimate
    print(json.dumps({
        "torch": torch_says,
        "measured": [estimate.measured.peak_allocated_bytes, estimate.measured.peak_reserved_bytes],
        "peak_allocated": estimate.peak_allocated_bytes,
        "category": estimate.breakdown.category_peaks,
        "parameters": sum(-(-p.nbytes // 512) * 512 for p in model.parameters()),
        "iterations": estimate.trace.iterations,
        "inference": inference.estimate.breakdown.category_peaks,
        "diagnostics": [str(found) for found in estimate.diagnostics],
    }))
"""


def test_a_block_is_measured_on_a_gpu(phantom: Phantom, tmp_path: Path) -> None:
    packages = [str(path) for path in PACKAGES]
    trace = tmp_path / "trace.json"
    environment = {"PYTHONPATH": os.pathsep.join(packages[:1])}
    ran = phantom.run(PROGRAM, json.dumps(packages), str(trace), **environment)
    if "No module named 'numpy'" in ran.stderr or "xmem._core" in ran.stderr:
        pytest.skip("this Python cannot load the core of the tests' one")
    found = ran.result
    assert found["measured"] == found["torch"]
    assert found["peak_allocated"] == found["torch"][0]
    assert found["category"]["parameter"] == found["parameters"]
    assert found["category"]["gradient"] == found["parameters"]
    assert found["category"]["optimizer_state"] == 2 * found["parameters"]
    assert found["inference"]["parameter"] == found["parameters"]
    assert found["iterations"] == 2
    assert found["diagnostics"] == []
    assert xmem.estimate(trace).peak_allocated_bytes == found["torch"][0]
