"""What memory is called that holds many parameters or gradients at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import PhantomMachine, capture
from xmem.trace.attribution import Category

from ..conftest import NEWEST_FIRST, PYTHONS, needs_torch

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

MIB = 1 << 20
LAYERS = 4
WEIGHTS = 1024 * 1024 * 4  # bytes of one layer, a multiple of what the allocator rounds to

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
if sys.argv[1] == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif sys.argv[1] == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
else:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(16, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
"""


@pytest.mark.parametrize("python", NEWEST_FIRST)
@pytest.mark.parametrize("way", most_nightly(["fsdp2", "ddp", "fsdp1"]))
def test_flat_memory_is_parameters_and_gradients(python: str, way: str, tmp_path: Path) -> None:
    if way == "fsdp2":
        needs_torch(python, (2, 6), "FSDP2 is elsewhere")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = capture(
        [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
            way,
        ],
        tmp_path / "trace.json",
        mode="phantom",
        machine=PhantomMachine(count=2),
        timeout_s=240,
    )
    found = xmem.analyze(result.path, gpu="rtx-3060")
    workload = found.stages.workload
    large = workload.size_bytes >= WEIGHTS // 2
    held = Counter(Category(value).label for value in found.holders.category[large].tolist())
    if way == "ddp":
        at_peak = found.estimate.breakdown.category
        # Gradients and the buckets that they are reduced in.
        assert at_peak["gradient"] == pytest.approx(2 * LAYERS * WEIGHTS, rel=0.01)
        assert at_peak["parameter"] == pytest.approx(LAYERS * WEIGHTS, rel=0.01)
    else:
        # What is gathered in each iteration, in forward and in backward but for the last layer, is parameters.
        whole = (workload.size_bytes == WEIGHTS) & (found.holders.category == Category.PARAMETER)
        assert whole.sum() >= 3 * (2 * LAYERS - 1), held
    assert held["activation"] == held["input"] == 0, held
