"""Table VI of the DNN-occu paper on job mixes of this project's predictions: 4 GPUs, 100 seeded mixes.

A job is inference of an image or language model of the paper's Table II at a random batch size. Its
occupancy and utilisation are of the kernel model and its roofline on the named GPU, its memory over time
that of its tensors while they live. Nothing was measured on a GPU: the order of the policies is the
result, not the seconds.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import leave_one_out
import numpy as np
import torch

from xmem.devices.gpus import find_device
from xmem.occupancy.calculator import filling, residency
from xmem.occupancy.durations import Roofline, fit_roofline, roofline_ns
from xmem.occupancy.kernel_data import shipped_model
from xmem.occupancy.learned.extract import graph_of
from xmem.occupancy.learned.graph import OperatorGraph
from xmem.occupancy.limits import limits_of
from xmem.occupancy.packing import POLICIES, Job, Outcome, Slowdown, compare

BATCHES = (16, 32, 64, 96, 128)
LAUNCH_GAP_NS = 4000.0  # that the host takes for an operator: what keeps small jobs from filling a GPU's time


class _Encoder(torch.nn.Module):
    """A transformer encoder as in BERT or ViT: the sizes are what counts here."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "qkv": torch.nn.Linear(width, 3 * width),
                    "out": torch.nn.Linear(width, width),
                    "up": torch.nn.Linear(width, 4 * width),
                    "down": torch.nn.Linear(4 * width, width),
                    "first": torch.nn.LayerNorm(width),
                    "second": torch.nn.LayerNorm(width),
                }
            )
            for _ in range(layers)
        )
        self.heads = heads

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            queries, keys, values = (
                part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in layer["qkv"](layer["first"](tokens)).chunk(3, -1)
            )
            shares = torch.softmax(queries @ keys.transpose(-1, -2), -1)
            tokens = tokens + layer["out"]((shares @ values).transpose(1, 2).flatten(2))
            hidden = layer["up"](layer["second"](tokens))
            tokens = tokens + layer["down"](torch.nn.functional.gelu(hidden))
        return tokens


class _Block(torch.nn.Module):
    """A block of a ResNet: two convolutions of 3 by 3, or a narrow one between two of 1 by 1."""

    def __init__(self, inside: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outside = width * 4 if bottleneck else width
        shapes = [(inside, width, 1, 1), (width, width, 3, stride), (width, outside, 1, 1)]
        if not bottleneck:
            shapes = [(inside, width, 3, stride), (width, width, 3, 1)]
        self.path = torch.nn.ModuleList(
            torch.nn.Conv2d(before, after, window, step, window // 2, bias=False)
            for before, after, window, step in shapes
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(shape[1]) for shape in shapes)
        changes = stride > 1 or inside != outside
        self.skip = torch.nn.Conv2d(inside, outside, 1, stride, bias=False) if changes else None

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = self.skip(image) if self.skip else image
        for number, (conv, norm) in enumerate(zip(self.path, self.norms, strict=True)):
            image = norm(conv(image))
            if number < len(self.path) - 1:
                image = torch.relu(image)
        return torch.relu(image + kept)


def _resnet(depths: tuple[int, ...], bottleneck: bool) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, 64, 7, 2, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for number in range(depth):
            layers.append(_Block(inside, width, 2 if stage and not number else 1, bottleneck))
            inside = width * 4 if bottleneck else width
    return torch.nn.Sequential(
        *layers, torch.nn.AvgPool2d(7), torch.nn.Flatten(), torch.nn.Linear(inside, 1000)
    )


def _vgg(convolutions: tuple[int, ...]) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    inside = 3
    for count, width in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [torch.nn.Conv2d(inside, width, 3, padding=1), torch.nn.ReLU()]
            inside = width
        layers.append(torch.nn.MaxPool2d(2))
    sizes = ((512 * 49, 4096), (4096, 4096), (4096, 1000))
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), *(torch.nn.Linear(*size) for size in sizes))


def graphs() -> dict[str, OperatorGraph]:
    """Return the graphs of all models at all batch sizes, in half precision as the recorded runs are."""
    images = {
        "resnet18": _resnet((2, 2, 2, 2), False),
        "resnet34": _resnet((3, 4, 6, 3), False),
        "resnet50": _resnet((3, 4, 6, 3), True),
        "vgg11": _vgg((1, 1, 2, 2, 2)),
        "vgg16": _vgg((2, 2, 3, 3, 3)),
    }
    encoders = {
        "vit-t": (12, 192, 3, 197),
        "vit-s": (12, 384, 6, 197),
        "distilbert": (6, 768, 12, 128),
        "gpt2": (12, 768, 12, 256),
    }
    found = {}
    for batch in BATCHES:
        for name, network in images.items():
            image = torch.empty(batch, 3, 224, 224, dtype=torch.bfloat16, device="meta")
            found[f"{name} {batch}"] = graph_of(network.bfloat16(), (image,))
        for name, (layers, width, heads, tokens) in encoders.items():
            inputs = torch.empty(batch, tokens, width, dtype=torch.bfloat16, device="meta")
            found[f"{name} {batch}"] = graph_of(_Encoder(layers, width, heads).bfloat16(), (inputs,))
    return found


def job_of(name: str, graph: OperatorGraph, gpu: str, roofline: Roofline) -> Job | None:
    """Return a job of a model's inference; None where half of its operators were never recorded."""
    device = find_device(gpu)
    assert device.compute_capability is not None
    limits, model = limits_of(device.compute_capability), shipped_model()
    launches, times, missing = [], [], 0
    for problem in graph.problems:
        predicted = model.predict(problem, device.compute_capability, device.multiprocessors)
        if predicted is None:
            missing += 1
            continue
        took = roofline_ns(roofline, problem, device.multiprocessors)
        launches += predicted.launches
        times += [took * launch.share for launch in predicted.launches]
    if missing > len(graph) // 2:
        return None
    kernels = [launch.kernel for launch in launches]
    held = residency(
        limits,
        [kernel.threads for kernel in kernels],
        [kernel.registers for kernel in kernels],
        [kernel.shared_bytes for kernel in kernels],
    )
    columns = filling(limits, device.multiprocessors, held, [launch.blocks for launch in launches])
    busy = sum(times)
    wall = max(busy, LAUNCH_GAP_NS * len(graph))
    occupancy = float(np.average(columns.elapsed, weights=times)) * busy / wall
    return Job(name, wall / 1e9, occupancy, busy / wall, _memory(graph))


def _memory(graph: OperatorGraph) -> tuple[int, ...]:
    """Return the bytes of tensors still to be taken, by operator, and of what is there throughout."""
    size, last = defaultdict(int), defaultdict(int)
    for source, target, moved in zip(graph.source, graph.target, graph.edge_bytes, strict=True):
        size[int(source)] = max(size[int(source)], int(moved))
        last[int(source)] = max(last[int(source)], int(target))
    live = np.zeros(len(graph) + 1, dtype=np.int64)
    for node, moved in size.items():
        live[node] += moved
        live[min(last[node] + 1, len(graph))] -= moved
    weights = sum(
        problem.bytes // 4 for problem in graph.problems if problem.product and len(problem.shapes) > 1
    )
    context = 500 << 20
    return tuple(int(item) + context + min(weights, 1 << 30) for item in np.cumsum(live)[:-1])


def draw(jobs: Sequence[Job], seed: int, count: int) -> list[Job]:
    """Return a mix: jobs at random, each for 10 to 60 seconds of iterations alone."""
    chance = random.Random(seed)
    return [replace(job, seconds=chance.uniform(10, 60)) for job in chance.choices(jobs, k=count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="traces that the roofline is fitted to")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--memory-gib", type=float, default=22.5, help="of a GPU; the paper's P40 has 22.5")
    parser.add_argument("--mixes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=24)
    arguments = parser.parse_args()
    traces = leave_one_out.read_all(arguments.traces)
    capability = find_device(arguments.gpu).compute_capability
    roofline = fit_roofline(
        (call.recorded.problem, call.recorded.multiprocessors, sum(call.durations_ns))
        for trace in traces
        if trace.compute_capability == capability
        for call in trace.calls
    )
    memory = int(arguments.memory_gib * (1 << 30))
    made = (job_of(name, graph, arguments.gpu, roofline) for name, graph in graphs().items())
    jobs = [job for job in made if job is not None and max(job.memory_bytes) <= memory]
    occupancies = [job.occupancy for job in jobs]
    print(
        f"{len(jobs)} jobs on a {arguments.gpu} with {arguments.memory_gib} GiB; "
        f"occupancy {min(occupancies):.2f} to "
        f"{max(occupancies):.2f}, mean {np.mean(occupancies):.2f}; NVML utilisation mean "
        f"{np.mean([job.utilisation for job in jobs]):.2f}; memory mean "
        f"{np.mean([max(job.memory_bytes) for job in jobs]) / (1 << 30):.1f} GiB"
    )
    mixes = [draw(jobs, seed, arguments.jobs) for seed in range(arguments.mixes)]
    for label, slowdown in (
        ("the paper's slow-down", Slowdown()),
        ("half of it", Slowdown(0.05, 0.10, 0.40, 0.30)),
        ("twice", Slowdown(0.20, 0.40, 1.60, 1.20)),
    ):
        found = compare(mixes, gpus=4, memory_bytes=memory, slowdown=slowdown)
        print(
            f"\n{label:32}{'makespan':>10}{'gain':>8}{'wins':>7}{'NVML':>8}{'gain':>8}{'memory':>8}{'kills':>7}"
        )
        for policy in POLICIES:
            print(_row(policy, found[policy], found["slot"]))


def _row(policy: str, outcomes: Sequence[Outcome], slots: Sequence[Outcome]) -> str:
    makespan, alone = (np.array([item.makespan_seconds for item in side]) for side in (outcomes, slots))
    use, alone_use = (np.array([item.utilisation for item in side]) for side in (outcomes, slots))
    return (
        f"{policy:32}{makespan.mean():10.1f}{1 - makespan.mean() / alone.mean():8.1%}"
        f"{(makespan < alone - 1e-6).mean():7.0%}{use.mean():8.1%}{use.mean() / alone_use.mean() - 1:+8.1%}"
        f"{np.mean([item.memory for item in outcomes]):8.1%}{np.mean([item.kills for item in outcomes]):7.2f}"
    )


if __name__ == "__main__":
    main()
