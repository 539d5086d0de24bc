"""Policies on traces that torch.profiler wrote on this machine: jobs of a few tensors, foreign to us."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmem.attribution import Phase, attribute
from xmem.blocks import CPU, pair_blocks
from xmem.orchestration.attention import ReplaceAttention
from xmem.orchestration.optimizers import DropStepCounters, ReplaceOptimizerTemporaries
from xmem.orchestration.policy import Context, Policy, Target, apply_policies
from xmem.orchestration.workload import Workload, workload_of
from xmem.trace import read_trace

pytest.importorskip("torch")

AMPERE = Target((8, 6), (2, 12))

_PROFILED = """
import json, sys, warnings
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
warnings.filterwarnings("ignore")
options = json.loads(sys.argv[2])
{setup}
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
    for _ in range(2):
{step}
profiler.export_chrome_trace(sys.argv[1])
"""

_ATTENTION = """
dtype = getattr(torch, options["dtype"])
project = torch.nn.Linear(256, 768, dtype=dtype)
merge = torch.nn.Linear(256, 256, dtype=dtype)
x = torch.randn(2, 100, 256, dtype=dtype)
mask = torch.ones(2, 1, 100, 100, dtype=torch.bool) if options["mask"] else None
def attend():
    q, k, v = (t.view(2, 100, 4, 64).transpose(1, 2) for t in project(x).split(256, -1))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=options["dropout"])
"""
_ATTENTION_STEP = """
attended = attend()
merged = merge(attended.transpose(1, 2).reshape(2, 100, 256))
del attended
merged.sum().backward()
del merged
"""

_OPTIMIZER = """
model = torch.nn.Sequential(
    torch.nn.Linear(30, 50), torch.nn.ReLU(), torch.nn.Linear(50, 70), torch.nn.ReLU(), torch.nn.Linear(70, 9)
)
layers = [list(model[0].parameters()), list(model[2].parameters()) + list(model[4].parameters())]
groups = [{"params": layer} for layer in layers] if options.pop("groups", False) else model.parameters()
optimizer = getattr(torch.optim, options.pop("name"))(groups, lr=1e-3, **options)
x = torch.randn(16, 30)
"""
_OPTIMIZER_STEP = """
model(x).sum().backward()
optimizer.step()
optimizer.zero_grad()
"""


def profiled(folder: Path, setup: str, step: str, **options: Any) -> tuple[Workload, Context]:
    """The blocks of two iterations."""
    script, trace = folder / "job.py", folder / f"{len(list(folder.iterdir()))}.json"
    script.write_text(_PROFILED.format(setup=setup, step=textwrap.indent(step.strip(), " " * 8)))
    subprocess.run([sys.executable, str(script), str(trace), json.dumps(options)], check=True, timeout=300)
    read = read_trace(trace)
    blocks = pair_blocks(read)
    attribution = attribute(read, blocks)
    return workload_of(blocks, attribution, CPU, -1), Context(read, blocks, attribution, AMPERE)


def requests(workload: Workload, begin_ns: int = 0, end_ns: int = 1 << 62) -> list[str]:
    """Allocations and frees of more than a number or two, in order."""
    found = []
    for size_bytes, *times in zip(workload.size_bytes, workload.alloc_ns, workload.free_ns, strict=True):
        if size_bytes > 16:
            found += [
                (time_ns, sign, int(size_bytes))
                for sign, time_ns in zip("+-", times, strict=True)
                if begin_ns <= time_ns <= end_ns
            ]
    found.sort(key=lambda entry: (entry[0], entry[1] == "-"))
    return [f"{sign}{size_bytes}" for _, sign, size_bytes in found]


def requests_of_steps(workload: Workload, context: Context) -> list[list[str]]:
    events = context.trace.events
    steps = context.operators.rows_named(lambda name: name.startswith("Optimizer.step#"), kind=1)
    return [
        requests(workload, int(events.begin_ns[row]), int(events.end_ns[row]))
        for row in np.flatnonzero(steps)
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_in_float32_is_that_of_the_memory_efficient_kernel(tmp_path: Path, dropout: float) -> None:
    before, context = profiled(
        tmp_path, _ATTENTION, _ATTENTION_STEP, dtype="float32", mask=False, dropout=dropout
    )
    after, (change,) = apply_policies([ReplaceAttention()], before, context)
    assert change.blocks_changed > 0
    # In bytes: query, key, value and result are 2 x 4 x 100 x 64 x 4 = 204,800 each, the first three one
    # block; sums of rows 2 x 4 x 128 x 4; product and sums of the backward; workspace 8 x 2 x (64 x 64 x 4 + 16).
    # The linear layers behind it: gradients of weight (262,144) and result.
    assert requests(after)[: requests(after).index("-262400") + 1] == [
        "+614400", "+204800", "+4096", "+204800",
        "+204800", "+204800", "-204800", "+262144", "+204800", "-204800", "+1024",
        "+204800", "+204800", "+204800", "+204800", "+3200", "+3200", "-3200", "-204800",
        "+262400", "-3200", "-262400",
    ]  # fmt: skip


def test_a_mask_of_attention_is_padded_and_kept(tmp_path: Path) -> None:
    before, context = profiled(
        tmp_path, _ATTENTION, _ATTENTION_STEP, dtype="bfloat16", mask=True, dropout=0.1
    )
    after, _ = apply_policies([ReplaceAttention()], before, context)
    # 2 x 100 x 100 numbers of two bytes, then rows of 104 of them; result; sums of rows
    assert requests(after)[1:6] == ["+40000", "+41600", "-40000", "+102400", "+4096"]
    padded = after.select(after.size_bytes == 41_600)
    accumulators = after.select(after.size_bytes == 262_400)
    assert len(padded) == len(accumulators) == 2
    assert (padded.free_ns > accumulators.free_ns).all()


def test_flash_attention_keeps_the_state_of_its_random_generator(tmp_path: Path) -> None:
    before, context = profiled(
        tmp_path, _ATTENTION, _ATTENTION_STEP, dtype="bfloat16", mask=False, dropout=0.0
    )
    after, _ = apply_policies([ReplaceAttention()], before, context)
    made = after.select((after.block < 0) & (after.phase == Phase.FORWARD))
    assert sorted(made.size_bytes.tolist()) == [8, 8, 16, 16, 3200, 3200]
    old = Context(context.trace, context.blocks, context.attribution, Target((8, 6), (2, 6)))
    after, _ = apply_policies([ReplaceAttention()], before, old)
    assert sorted(after.select((after.block < 0) & (after.phase == Phase.FORWARD)).size_bytes) == [3200, 3200]


def test_attention_in_float64_is_computed_from_scores_on_cuda_too(tmp_path: Path) -> None:
    before, context = profiled(
        tmp_path, _ATTENTION, _ATTENTION_STEP, dtype="float64", mask=False, dropout=0.1
    )
    after, (change,) = apply_policies([ReplaceAttention()], before, context)
    assert change.blocks_changed == 0


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "SGD"},
        {"name": "SGD", "momentum": 0.9},
        {"name": "SGD", "momentum": 0.9, "weight_decay": 0.1},
        {"name": "SGD", "momentum": 0.9, "nesterov": True},
        {"name": "Adam"},
        {"name": "Adam", "weight_decay": 0.1, "amsgrad": True},
        {"name": "AdamW", "groups": True},
        {"name": "Adagrad"},
        {"name": "RMSprop", "weight_decay": 0.1, "momentum": 0.9},
        {"name": "Adadelta", "weight_decay": 0.1},
        {"name": "Adamax"},
        {"name": "NAdam", "weight_decay": 0.1},
        {"name": "RAdam"},
        {"name": "ASGD"},
        {"name": "Rprop"},
    ],
    ids=lambda options: "-".join(options),
)
def test_a_for_loop_becomes_what_foreach_allocates(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    policies: list[Policy[Any]] = [DropStepCounters(), ReplaceOptimizerTemporaries()]
    loop, loop_context = profiled(tmp_path, _OPTIMIZER, _OPTIMIZER_STEP, **optimizer, foreach=False)
    lists, lists_context = profiled(tmp_path, _OPTIMIZER, _OPTIMIZER_STEP, **optimizer, foreach=True)
    after, _ = apply_policies(policies, loop, loop_context)
    assert requests_of_steps(after, loop_context) == requests_of_steps(lists, lists_context)
    _, (_, change) = apply_policies(policies, lists, lists_context)
    assert change.blocks_changed == 0


def test_step_counters_are_on_the_host_but_for_asgd(tmp_path: Path) -> None:
    def numbers(name: str) -> int:
        before, context = profiled(tmp_path, _OPTIMIZER, _OPTIMIZER_STEP, name=name)
        after, _ = apply_policies([DropStepCounters()], before, context)
        in_step = (after.phase == Phase.OPTIMIZER_STEP) & (after.free_ns > context.trace.events.end_ns.max())
        return int((after.size_bytes[in_step] <= 8).sum())

    assert numbers("NAdam") == 0
    assert numbers("ASGD") == 18  # step, eta and mu of six parameters
