"""Captures on the CPU that compute nothing: what they ask for, what they know, what stands for the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import PhantomMachine
from xmem.errors import CaptureError

from .conftest import TARGETS, Captured, capture, needs_torch, run_capture

pytestmark = needs_torch

Capturing = Callable[..., Captured]

JOBS = [
    ["every_layer.py", "4"],
    ["gpt.py", "--dropout", "0.1"],
    ["resnet.py"],
    ["amp_scaler.py"],
    ["custom_function.py"],
    ["dcgan.py"],
    ["encoder_workers.py"],
    ["hf_trainer.py"],
    ["lazy_layers.py"],
    ["recomputed.py"],
    ["recurrent.py"],
    ["to_device.py"],
    ["uncalled.py"],
]

TRAIN = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(rows=8, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(rows, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
    return loss
"""


def printed(folder: Path, script: str, **options: object) -> list[str]:
    """What a script prints while it is captured."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    (folder / "out").mkdir()
    run = run_capture(folder / "out", [sys.executable, str(path)], mode="fake", timeout_s=120, **options)
    return run.stdout.splitlines()


@pytest.mark.parametrize("job", most_nightly(JOBS), ids=[job[0] for job in JOBS])
def test_the_peak_is_that_of_a_capture_that_computes(captured: Capturing, job: list[str]) -> None:
    made, computed = (
        xmem.estimate(captured(*job, mode=mode, iterations=2).result.path, gpu="rtx-3060")
        for mode in ("fake", "real")
    )
    assert made.peak_reserved_bytes == computed.peak_reserved_bytes
    assert made.peak_allocated_bytes == pytest.approx(computed.peak_allocated_bytes, rel=0.002, abs=16 << 10)
    # Whether the peak holds them or not.
    assert made.convolution_workspaces == computed.convolution_workspaces


def test_a_model_that_is_larger_than_the_host_is_captured_in_little_memory(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        """
        import resource, torch
        model = torch.nn.Sequential(*(torch.nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(4))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(512, 1 << 16, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20, flush=True)
        """,
    )
    assert lines == ["0", "0"]  # GiB, of 64 GiB of weights with four times as much in all
    estimate = xmem.estimate(tmp_path / "out" / "trace.json", gpu="rtx-3060")
    assert estimate.peak_allocated_bytes > 256 << 30
    assert not estimate.fits


def test_what_the_host_knows_is_computed(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        TRAIN
        + textwrap.dedent(
            """
            mask = torch.tensor([True, False, True, True]).cuda()
            x = torch.arange(4, device="cuda")[mask]
            lengths = torch.tensor([3, 1, 2], device="cuda").cumsum(0)
            zeros = torch.zeros(1 << 24, device="cuda")
            print(x.tolist(), mask.sum().item(), lengths[-1].item(), zeros.eq(0).all().item())
            print(torch.equal(torch.ones((), device="cuda"), torch.tensor(1.0, device="cuda")))
            train()
            """
        ),
    )
    assert lines[:2] == ["[0, 2, 3] 3 6 True", "True"]


def test_an_unknown_value_is_zero_and_named(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        TRAIN
        + textwrap.dedent(
            """
            loss = train()
            gradient = model.weight.grad.cpu().numpy()
            print(loss.item(), loss.detach().cpu().numpy(), bool(loss > 1), gradient.any())
            """
        ),
        iterations=3,
    )
    assert lines == ["0.0 0.0 False False"]
    estimate = xmem.estimate(tmp_path / "out" / "trace.json", gpu="rtx-3060")
    assert any("branches on a GPU value" in each for each in estimate.assumptions)


def test_a_value_that_the_user_gives_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN) + "print(train().item(), flush=True)\ntrain()\n")
    out = tmp_path / "out.txt"
    with out.open("w") as stdout:
        capture(
            [sys.executable, str(path)],
            tmp_path / "trace.json",
            mode="fake",
            stdout=stdout.fileno(),
            machine=PhantomMachine(values={f"{path}:12": 7.5}),
        )
    assert out.read_text() == "7.5\n"


CUSTOM = """
library = torch.library.Library("mine", "DEF")
library.define("doubled(Tensor x) -> Tensor")
library.define("into(Tensor x, Tensor(a!) y) -> ()")
library.impl("doubled", lambda x: torch.cat((x, x)), "CUDA")
library.impl("into", lambda x, y: y.copy_(x), "CUDA")
{described}
x = torch.randn(8, 64, device="cuda")
y = torch.ops.mine.doubled(x)
torch.ops.mine.into(x, y)
print(tuple(y.shape), y.device.type)
train()
"""
DESCRIPTION = """
@torch.library.register_fake("mine::doubled")
def _(x):
    return x.new_empty(2 * x.shape[0], *x.shape[1:])
"""


def test_operators_with_a_kernel_for_cuda_alone_return_what_is_described(tmp_path: Path) -> None:
    assert printed(tmp_path, TRAIN + CUSTOM.format(described=DESCRIPTION)) == ["(16, 64) cuda"]


def test_operators_without_a_description_are_named_with_the_line_to_add(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN + CUSTOM.format(described=""))
    with pytest.raises(CaptureError, match="mine::doubled has no kernel for the CPU") as failed:
        xmem.capture.capture([sys.executable, str(script)], tmp_path / "t.json", mode="fake", timeout_s=120)
    assert "@torch.library.register_fake('mine::doubled')" in str(failed.value)


def test_tensors_without_memory_stay_on_meta(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        TRAIN
        + textwrap.dedent(
            """
            from torch._subclasses.fake_tensor import FakeTensorMode
            large = torch.empty(1 << 24, device="meta")
            moved = model.weight.detach().to("meta")
            with FakeTensorMode():
                traced = torch.empty(1 << 24)
            print(large.device, moved.device, moved.is_cuda, type(traced).__name__)
            train()
            """
        ),
    )
    assert lines[0] == "meta meta False FakeTensor"


def test_workers_that_load_data_compute(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        TRAIN
        + textwrap.dedent(
            """
            class Data(torch.utils.data.Dataset):
                def __len__(self):
                    return 2
                def __getitem__(self, index):
                    pixels = torch.full((2_000_000,), float(index))
                    return (pixels * 2).mean()
            loader = torch.utils.data.DataLoader(Data(), num_workers=1)
            print([batch.item() for batch in loader])
            train()
            """
        ),
    )
    assert lines[0] == "[0.0, 2.0]"


def test_what_scripts_do_has_the_sizes_that_it_has_when_it_is_computed(
    captured: Capturing,
) -> None:
    made = json.loads(captured("many_kinds.py", "cuda", mode="fake", iterations=50).stdout.splitlines()[0])
    computed = subprocess.run(
        [sys.executable, str(TARGETS / "many_kinds.py"), "cpu"], capture_output=True, text=True, check=True
    )
    assert made == json.loads(computed.stdout.splitlines()[0])


def test_a_process_group_of_one_trains(tmp_path: Path) -> None:
    lines = printed(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[0])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            told = torch.tensor([3.0], device="cuda")
            dist.all_reduce(told)
            print(told.item(), flush=True)
        """,
    )
    assert lines == ["3.0", "3.0"]


def test_wrong_shapes_fail_as_they_do_when_computed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN) + "model(torch.randn(8, 65, device='cuda'))\n")
    with pytest.raises(xmem.errors.CaptureError, match="shapes cannot be multiplied"):
        capture([sys.executable, str(path)], tmp_path / "trace.json", mode="fake")


assert all((TARGETS / job[0]).exists() for job in JOBS)
