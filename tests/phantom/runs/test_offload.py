"""Optimizers on the host: their state is made, their arithmetic is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightly import most_nightly
from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device

from ..conftest import NEWEST_FIRST, PYTHONS

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")


@pytest.fixture(params=NEWEST_FIRST)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Master weights, gradients and states of half a billion parameters: 4 times 2 GiB.
OFFLOADED = """
import json, torch

class Compiled:
    def load(self):
        raise RuntimeError("there is no compiler")

CPUAdamBuilder = Compiled

class CpuAdam(torch.optim.Optimizer):  # as DeepSpeed's
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.kernels = CPUAdamBuilder().load()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p.data), torch.zeros_like(p.data)
                self.kernels.adam_update(0, 1, p.data, p.grad.data, state["exp_avg"], state["exp_avg_sq"])

def resident_gib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**30

build = {"adamw": lambda p: torch.optim.AdamW(p), "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
         "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), "adagrad": lambda p: torch.optim.Adagrad(p), "cpu adam": CpuAdam}[NAME]
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(8))).cuda()
masters = [torch.empty(p.shape).copy_(p.detach()) for p in model.parameters()]
for master in masters:
    master.grad = torch.empty_like(master)
small = torch.ones(10, requires_grad=True)
small.grad = torch.ones(10)
before = resident_gib()
optimizer = build([*masters, small])
try:
    for _ in range(3):
        model(torch.empty(8, 8192, dtype=torch.bfloat16, device="cuda")).sum().backward()
        for master, parameter in zip(masters, model.parameters()):
            master.grad.copy_(parameter.grad.float())
            parameter.grad = None
        optimizer.step()
        for master, parameter in zip(masters, model.parameters()):
            parameter.data.copy_(master.data)
finally:
    state = optimizer.state[masters[-1]]
    with open("result.json", "w") as file:
        json.dump([resident_gib() - before, sorted(state), small[0].item(), float(masters[0].abs().max())], file)
"""


@pytest.mark.parametrize(
    ("name", "keys"),
    most_nightly(
        [
            ("adamw", ["exp_avg", "exp_avg_sq", "step"]),
            ("cpu adam", ["exp_avg", "exp_avg_sq"]),
            ("foreach", ["exp_avg", "exp_avg_sq", "step"]),
            ("sgd", ["momentum_buffer"]),
        ]
    ),
)
def test_an_optimizer_on_the_host_costs_no_memory_there(
    python: str, name: str, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(OFFLOADED.replace("NAME", repr(name)))
    made = captured(python, tmp_path)
    grown, state, of_small, _ = json.loads((tmp_path / "result.json").read_text())
    assert grown < 0.5
    assert state == keys
    if name != "cpu adam":
        assert of_small != 1  # small parameters are trained: a script may look at them
    assert any("optimizer arithmetic on host tensors" in text for text in made.metadata["assumptions"])


def captured(python: str, folder: Path) -> Any:
    machine = PhantomMachine(device=find_device("h100"))
    return capture([python, "train.py"], folder / "trace.json", mode="phantom", machine=machine)


@pytest.mark.nightly
def test_arithmetic_is_the_real_one_where_it_is_asked_for(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keep_init` brings it back, and a script without a GPU is none of this."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        """
import torch
model = torch.nn.Linear(8, 8).cuda()
weight = torch.ones(1 << 15, requires_grad=True)
weight.grad = torch.ones(1 << 15)
gpu, host = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD([weight], 0.25)
for _ in range(3):
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    host.step()
    with open("seen", "a") as file:
        file.write(f"{weight[0].item()} ")
    gpu.step()
"""
    )
    for keep_init, seen in ((False, "1.0 1.0 1.0"), (True, "0.75 0.5 0.25")):
        (tmp_path / "seen").unlink(missing_ok=True)
        machine = PhantomMachine(device=find_device("h100"), keep_init=keep_init)
        capture([python, "train.py"], tmp_path / "trace.json", mode="phantom", machine=machine)
        assert (tmp_path / "seen").read_text().split()[:2] == seen.split()[:2]
