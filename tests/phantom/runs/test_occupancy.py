"""Launches on the phantom GPU are those of a real one, kernel by kernel."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from xmem.capture import Extent, PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.occupancy.launches import Known, Launches
from xmem.occupancy.recorded import launches_of, of_last_iteration
from xmem.trace.trace import read_trace

from ..conftest import NEWEST_FIRST, PYTHONS

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

TRACES = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "traces"

BERT = """
import torch
from transformers import BertConfig, BertLMHeadModel
config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
model = BertLMHeadModel(config).to(torch.bfloat16).cuda().eval()
ids = torch.full((1, 141), 5).cuda()
mask, types = torch.ones_like(ids), torch.zeros_like(ids)
with torch.inference_mode():
    for _ in range(3):
        model(ids, attention_mask=mask, token_type_ids=types)
"""


def recorded(
    python: str, folder: Path, script: str, *, gpu: str = "h100", **options: Any
) -> tuple[Path, Launches]:
    """A script's trace and the launches of its last iteration."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(script))
    machine = PhantomMachine(device=find_device(gpu), launches=options.pop("launches", True))
    made = capture([python, str(program)], folder / "trace.json", mode="phantom", machine=machine, **options)
    trace = read_trace(made.path)
    return made.path, of_last_iteration(trace, launches_of(trace)) if machine.launches else None  # type: ignore[return-value]


def with_torch(version: str) -> str:
    """The Python that has this release, with transformers."""
    for python in PYTHONS:
        asked = "import torch, transformers; print(torch.__version__)"
        ran = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if ran.stdout.startswith(version):
            return python
    pytest.skip(f"needs torch {version} and transformers")


def test_launches_are_those_that_an_h100_recorded(tmp_path):
    path = TRACES / "h100_bert_small_inference.json.gz"
    if not path.exists():
        pytest.skip("needs the shared traces")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = sorted(
        (event for event in events if event.get("cat") == "kernel"), key=lambda event: event["ts"]
    )
    truth = [
        (
            event["name"],
            tuple(event["args"]["grid"]),
            tuple(event["args"]["block"]),
            event["args"]["registers per thread"],
            event["args"]["shared memory"],
        )
        for event in kernels
    ]
    of_pytorch = [row for row in truth if "at::native" in row[0] or "pytorch_flash" in row[0]]
    assert len(of_pytorch) == 34
    _, found = recorded(with_torch("2.6.0"), tmp_path, BERT)
    ours = [
        (
            found.text(int(found.name[row])),
            tuple(found.grid[row].tolist()),
            tuple(found.block[row].tolist()),
            int(found.registers[row]),
            int(found.shared_bytes[row]),
        )
        for row in range(len(found))
        if found.known[row] == Known.EXACT
    ]
    assert ours == of_pytorch
    assert int((found.library_call >= 0).sum()) == len(truth) - len(of_pytorch)


TRAINING = """
import torch
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(14400, 8)
).cuda()
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 3, 32, 32, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("python", NEWEST_FIRST)
def test_a_launch_has_its_operator_its_module_and_its_problem(python, tmp_path):
    _, found = recorded(python, tmp_path, TRAINING)
    rows = [
        (found.text(int(operator)), found.text(int(module)))
        for operator, module in zip(found.operator, found.module, strict=True)
    ]
    assert ("aten::cudnn_convolution", "Sequential.0") in rows
    assert ("aten::convolution_backward", "Sequential.0") in rows  # by its forward operator
    assert ("aten::clamp_min", "Sequential.2") in rows
    assert ("aten::threshold_backward", "Sequential.2") in rows
    assert ("aten::_fused_adamw_", "") in rows
    assert sum(not operator for operator, _ in rows) == 0
    calls = found.library_calls
    families = [found.text(int(row)) for row in calls.family]
    assert {"gemm", "convolution", "convolution_filter_gradient", "normalization"} <= set(families)
    problem = json.loads(found.text(int(calls.problem[families.index("convolution")])))
    assert problem["input"] == [4, 3, 32, 32]
    assert problem["filter"] == [16, 3, 3, 3]
    assert problem["engine"].split()[0].isdigit()  # what cuDNN's heuristics chose, with its knobs
    norm = json.loads(found.text(int(calls.problem[families.index("normalization")])))
    assert norm == {"input": [4, 16, 30, 30], "mode": 1}
    gemms = [calls.sizes[row].tolist() for row, family in enumerate(families) if family == "gemm"]
    assert [8, 4, 14400, 1] in gemms


FUSED = """
import torch
layer = torch.nn.MultiheadAttention(64, 4, batch_first=True).cuda().eval()
x = torch.zeros(2, 16, 64, device="cuda")
with torch.inference_mode():
    for _ in range(3):
        layer(x, x, x, need_weights=False)
"""


@pytest.mark.parametrize("python", NEWEST_FIRST)
def test_modules_that_ask_who_overrides_torch_take_their_fused_kernels(python, tmp_path):
    _, found = recorded(python, tmp_path, FUSED)
    operators = {found.text(int(row)) for row in found.operator}
    # Seen on an H100: without the fast path the projections would be a product and an addition of their own.
    assert "aten::add_" not in operators
    assert "aten::addmm" in operators


GRAPH = """
import torch
x = torch.zeros(4096, device="cuda")
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    x.mul(2)
layer = torch.nn.Linear(8, 8).cuda()
with torch.cuda.graph(graph):
    y = x.mul(2).add(1)
with torch.no_grad():
    for _ in range(3):
        layer(torch.zeros(2, 8, device="cuda"))
        graph.replay()
        graph.replay()
"""


def test_the_kernels_of_a_graph_count_whenever_it_is_launched(tmp_path):
    path, _ = recorded(PYTHONS[0], tmp_path, GRAPH)
    found = launches_of(read_trace(path))
    names = [found.text(int(row)) for row in found.name]
    assert sum("MulFunctor" in name for name in names) == 1 + 6  # once before, none while it was captured
    assert sum("CUDAFunctorOnSelf_add" in name for name in names) == 6


def test_a_capture_that_was_not_asked_writes_no_launches_down(tmp_path):
    path, _ = recorded(PYTHONS[0], tmp_path, TRAINING, launches=False, extent=Extent(2))
    assert read_trace(path).notes.launches is None
