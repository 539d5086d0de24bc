"""torch.compile: Inductor and Triton compile for the described architecture, and their kernels are launched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import xmem
from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device

from ..conftest import torch_version

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="Triton needs a C compiler")

TRAINING = """
import json, sys, torch
def train(mode):
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 256)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(model, mode=mode) if mode else model
    x = torch.randn(512, 256, device="cuda")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        loss = step(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
"""


@pytest.mark.nightly
def test_a_compiled_step_needs_less_than_an_eager_one(phantom):
    ran = phantom.run(
        TRAINING + 'print(json.dumps([train(None), train("default")]))', TORCHINDUCTOR_COMPILE_THREADS="1"
    )
    eager, compiled = ran.result
    assert compiled < eager
    launcher = ran.processes[0]
    assert launcher.calls["cuModuleGetFunction"] > 0
    assert launcher.calls.get("cuLaunchKernel", 0) + launcher.calls.get("cuLaunchKernelEx", 0) > 0


@pytest.mark.nightly
def test_an_optimizer_step_can_be_compiled_while_it_is_captured(phantom, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))
step = torch.compile(optimizer.step)
for _ in range(4):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    step()
    optimizer.zero_grad()
"""
    )
    result = capture([phantom.python, str(script)], tmp_path / "trace.json", mode="phantom")
    estimate = xmem.estimate(result.path)
    assert result.iterations == 3
    # Moments of 64 x 64 weights and 64 biases.
    assert estimate.breakdown.category["optimizer_state"] >= 2 * 4 * (64 * 64 + 64)


def test_reduced_overhead_replays_graphs_from_a_pool_of_their_own(phantom):
    ran = phantom.run(
        TRAINING
        + """
train("reduce-overhead")
print(json.dumps(len({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()})))
""",
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    assert ran.result == 2
    assert ran.processes[0].calls["cudaGraphLaunch"] > 0


def test_what_a_triton_kernel_needs_is_read_from_its_code(phantom):
    ran = phantom.run(
        """
        import json, os, re, subprocess, torch, triton
        import triton.language as tl

        @triton.jit
        def kernel(x, y, n, B: tl.constexpr):
            i = tl.program_id(0) * B + tl.arange(0, B)
            v = tl.load(x + i, mask=i < n, other=0.0)
            tl.store(y + i, tl.sort(tl.sin(v)), mask=i < n)

        x = torch.zeros(1 << 16, device="cuda")
        compiled = kernel[(64,)](x, torch.empty_like(x), x.numel(), B=1024)
        with open("kernel.cubin", "wb") as file:
            file.write(compiled.asm["cubin"])
        tool = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
        usage = subprocess.run([tool, "-res-usage", "kernel.cubin"], capture_output=True, text=True)
        registers, stack = re.search(r"REG:(\\d+) STACK:(\\d+)", usage.stdout + usage.stderr).groups()
        print(json.dumps([compiled.n_regs, 4 * compiled.n_spills, int(registers), int(stack)]))
        """
    )
    registers, local_bytes, expected_registers, expected_stack = ran.result
    assert (registers, local_bytes) == (expected_registers, expected_stack)
    assert registers != 32  # which is assumed of kernels without code


# Dynamo compiles what is called after a graph break, too, with sizes that it does not know.
COLLECTIVES = """
import os, torch
import torch.distributed as dist
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": CHOSEN}
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))

@torch.compile
def shared(gradient):
    own = torch.empty_like(gradient)
    dist.reduce_scatter_tensor(own, gradient, async_op=True).get_future().wait()
    return own * 2

@torch.compile(fullgraph=True)
def summed(loss):
    dist.all_reduce(loss)
    return loss * 2

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for rows in (8, 16, 24, 32):
    summed(model(torch.randn(rows, 64, device="cuda")).sum().detach())
    model(torch.randn(rows, 64, device="cuda")).sum().backward()
    shared(torch.ones(1 << 20, rows, device="cuda"))
    optimizer.step()
dist.destroy_process_group()
"""


def test_collectives_in_compiled_functions_are_traced_as_they_are(phantom, tmp_path, unused_port):
    script = tmp_path / "train.py"
    script.write_text(COLLECTIVES.replace("CHOSEN", repr(unused_port)))
    result = capture([phantom.python, str(script)], tmp_path / "trace.json", mode="phantom")
    assert result.iterations == 3
    if torch_version(phantom) >= (2, 8):  # keeps tensors of collectives
        assert result.metadata["phantom"]["unwaited_bytes"] > 2 * (1 << 20) * (8 + 16) * 4


def test_a_second_capture_takes_compiled_code_from_the_cache(phantom, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model)
for _ in range(3):
    compiled(torch.randn(1024, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    cache = tmp_path / "cache"
    machine = PhantomMachine(find_device("a100-80gb"), compile_cache=cache)

    def run(name: str) -> tuple[xmem.Estimate, set[Path]]:
        command = [phantom.python, str(script)]
        result = capture(command, tmp_path / f"{name}.json", mode="phantom", machine=machine)
        graphs = {path for path in (cache / "inductor" / "fxgraph").rglob("*") if path.is_file()}
        return xmem.estimate(result.path), graphs

    first, compiled = run("first")
    second, compiled_again = run("second")
    assert len(compiled) > 0
    assert compiled_again == compiled
    told = ["compile cache" in " ".join(estimate.assumptions) for estimate in (first, second)]
    assert told == [False, True]
    assert second.peak_allocated_bytes <= first.peak_allocated_bytes
    held = [estimate.breakdown.category["parameter"] for estimate in (first, second)]
    assert held[0] == held[1] > 0
