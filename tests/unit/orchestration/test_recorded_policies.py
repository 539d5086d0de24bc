"""Policies on traces that torch.profiler wrote on this machine: jobs of a few tensors, foreign to us."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmem.orchestration.attention.fused_attention import ReplaceAttention
from xmem.orchestration.kernels.dropout_masks import ResizeDropoutMasks
from xmem.orchestration.optimizer.optimizer_temporaries import DropStepCounters, ReplaceOptimizerTemporaries
from xmem.orchestration.policy import Policy, apply_policies
from xmem.run.recorded import Context
from xmem.run.target import Target
from xmem.run.workload import Workload, workload_of
from xmem.trace.attribution import Phase, attribute
from xmem.trace.blocks import CPU, pair_blocks
from xmem.trace.trace import read_trace

pytest.importorskip("torch")

AMPERE = Target((8, 6), (2, 12))

_PROFILED = """
import json, sys, warnings
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
warnings.filterwarnings("ignore")
for path, options in json.loads(sys.argv[1]).items():
{setup}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
        for _ in range(2):
{step}
    profiler.export_chrome_trace(path)
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


Job = tuple[Workload, Context]


def profiled(folder: Path, setup: str, step: str, jobs: Sequence[dict[str, Any]]) -> list[Job]:
    """The blocks of two iterations of each job; all are run by one process."""
    script = folder / "jobs.py"
    script.write_text(
        _PROFILED.format(
            setup=textwrap.indent(setup.strip(), " " * 4), step=textwrap.indent(step.strip(), " " * 12)
        )
    )
    traces = {str(folder / f"{number}.json"): job for number, job in enumerate(jobs)}
    subprocess.run([sys.executable, str(script), json.dumps(traces)], check=True, timeout=300)
    return [read(trace) for trace in traces]


def read(path: str) -> Job:
    trace = read_trace(path)
    blocks = pair_blocks(trace)
    attribution = attribute(trace, blocks)
    return workload_of(blocks, attribution, CPU, -1), Context(trace, blocks, attribution, target=AMPERE)


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


_CALLS = {
    "float32": {"dtype": "float32", "mask": False, "dropout": 0.0},
    "float32, dropout": {"dtype": "float32", "mask": False, "dropout": 0.1},
    "mask": {"dtype": "bfloat16", "mask": True, "dropout": 0.1},
    "bfloat16": {"dtype": "bfloat16", "mask": False, "dropout": 0.0},
    "float64": {"dtype": "float64", "mask": False, "dropout": 0.1},
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    folder = tmp_path_factory.mktemp("attention")
    jobs = profiled(folder, _ATTENTION, _ATTENTION_STEP, list(_CALLS.values()))
    return dict(zip(_CALLS, jobs, strict=True))


@pytest.mark.parametrize("call", ["float32", "float32, dropout"])
def test_attention_in_float32_is_that_of_the_memory_efficient_kernel(
    calls: dict[str, Job], call: str
) -> None:
    before, context = calls[call]
    after, (change,) = apply_policies([ReplaceAttention()], before, context)
    assert change.blocks_changed > 0
    # In bytes: query, key, value and result are 2 x 4 x 100 x 64 x 4 = 204,800 each, the first three one
    # block; sums of rows 2 x 4 x 128 x 4; product and sums of the backward; workspace
    # 8 x 2 x (64 x 64 x 4 + 16). Between them, the layer behind and its gradients.
    made = requests(after)
    assert made[: made.index("-262400") + 1] == [
        "+614400", "+204800", "+4096", "+204800",
        "+204800", "+204800", "-204800", "+262144", "+204800", "-204800", "+1024",
        "+204800", "+204800", "+204800", "+204800", "+3200", "+3200", "-3200", "-204800",
        "+262400", "-3200", "-262400",
    ]  # fmt: skip


def test_a_mask_of_attention_is_padded_and_kept(calls: dict[str, Job]) -> None:
    before, context = calls["mask"]
    after, _ = apply_policies([ReplaceAttention()], before, context)
    # 2 x 100 x 100 numbers of two bytes, then rows of 104 of them; result; sums of rows
    made = requests(after)
    first = made.index("+40000")
    assert made[first : first + 5] == ["+40000", "+41600", "-40000", "+102400", "+4096"]
    padded = after.select(after.size_bytes == 41_600)
    accumulators = after.select(after.size_bytes == 262_400)
    assert len(padded) == len(accumulators) == 2
    assert (padded.free_ns > accumulators.free_ns).all()


@pytest.mark.parametrize(("version", "numbers"), [((2, 6), []), ((2, 12), [8, 8, 16, 16])])
def test_flash_attention_keeps_the_state_of_its_random_generator(
    calls: dict[str, Job], version: tuple[int, int], numbers: list[int]
) -> None:
    before, context = calls["bfloat16"]
    after, _ = apply_policies([ReplaceAttention()], before, context.on(Target((8, 6), version)))
    made = after.select((after.block < 0) & (after.phase == Phase.FORWARD))
    assert sorted(made.size_bytes.tolist()) == [*numbers, 3200, 3200]


def test_attention_in_float64_is_computed_from_scores_on_cuda_too(calls: dict[str, Job]) -> None:
    before, context = calls["float64"]
    _, (change,) = apply_policies([ReplaceAttention()], before, context)
    assert change.blocks_changed == 0


_OPTIMIZERS: list[dict[str, Any]] = [
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
    {"name": "Adafactor"},
]


@pytest.fixture(scope="module")
def optimizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Job, Job]]:
    """By name and options: the run with the for-loop, and with foreach."""
    jobs = [{**options, "foreach": foreach} for options in _OPTIMIZERS for foreach in (False, True)]
    runs = profiled(tmp_path_factory.mktemp("optimizers"), _OPTIMIZER, _OPTIMIZER_STEP, jobs)
    names = ["-".join(map(str, options.values())) for options in _OPTIMIZERS]
    return dict(zip(names, zip(runs[::2], runs[1::2], strict=True), strict=True))


_POLICIES: list[Policy[Any]] = [DropStepCounters(), ReplaceOptimizerTemporaries()]


@pytest.mark.parametrize("name", ["-".join(map(str, options.values())) for options in _OPTIMIZERS[:-1]])
def test_a_for_loop_becomes_what_foreach_allocates(optimizers: dict[str, tuple[Job, Job]], name: str) -> None:
    (loop, loop_context), (lists, lists_context) = optimizers[name]
    after, _ = apply_policies(_POLICIES, loop, loop_context)
    assert requests_of_steps(after, loop_context) == requests_of_steps(lists, lists_context)
    _, (_, change) = apply_policies(_POLICIES, lists, lists_context)
    assert change.blocks_changed == 0


def test_adafactor_takes_the_for_loop_on_cuda_too(optimizers: dict[str, tuple[Job, Job]]) -> None:
    (loop, context), _ = optimizers["Adafactor"]
    _, (change,) = apply_policies([ReplaceOptimizerTemporaries()], loop, context)
    assert change.blocks_changed == 0


@pytest.mark.parametrize(("name", "expected"), [("NAdam-0.1", 0), ("ASGD", 18)])
def test_step_counters_are_on_the_host_but_for_asgd(
    optimizers: dict[str, tuple[Job, Job]], name: str, expected: int
) -> None:
    before, context = optimizers[name][0]
    after, _ = apply_policies([DropStepCounters()], before, context)
    in_step = (after.phase == Phase.OPTIMIZER_STEP) & (after.free_ns > context.trace.events.end_ns.max())
    assert int((after.size_bytes[in_step] <= 8).sum()) == expected  # step, eta and mu of six parameters


def test_the_for_loop_of_a_capture_was_asked_for_by_the_script(
    optimizers: dict[str, tuple[Job, Job]],
) -> None:
    loop, context = optimizers["Adam"][0]
    context.trace.__dict__["metadata"] = {"format": 1}
    try:
        _, changes = apply_policies(_POLICIES, loop, context)
    finally:
        context.trace.__dict__["metadata"] = None
    assert [change.blocks_changed for change in changes] == [0, 0]


_LOSSES = """
x = torch.randn(4, 8, 16, 16, dtype=getattr(torch, options.get("dtype", "float32")), requires_grad=True)
layer, y = torch.nn.Linear(256, 1000), torch.zeros(32, dtype=torch.long)
"""
_LOSSES_STEP = """
if options["loss"] == "cross_entropy":
    F.cross_entropy(layer(x.view(-1, 256)), y, label_smoothing=0.1).backward()
else:
    hidden = x * 2
    kept = getattr(F, options["loss"])(hidden, 0.1, training=True)
    del hidden
    kept.sum().backward()
    del kept
"""


def test_dropout_keeps_bytes_and_its_variants_and_losses_are_the_same_on_both(tmp_path: Path) -> None:
    jobs: list[dict[str, Any]] = [
        {"loss": "dropout"},
        {"loss": "dropout", "dtype": "bfloat16"},
        {"loss": "dropout2d"},
        {"loss": "alpha_dropout"},
        {"loss": "cross_entropy"},
    ]
    changes = []
    for before, context in profiled(tmp_path, _LOSSES, _LOSSES_STEP, jobs):
        _, (change,) = apply_policies([ResizeDropoutMasks()], before, context)
        changes.append(change.bytes_changed)
    # 8,192 elements in each of two iterations: one byte in place of four or two
    assert changes == [-2 * 8192 * 3, -2 * 8192, 0, 0, 0]
