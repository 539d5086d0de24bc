"""Trains the paper's network and its baselines on public measurements; judges them on models they have
not seen.

The labels are measured launches of profiler traces, their occupancy worked out by the calculator;
nothing that a model of ours made up is among them. Public traces hold a dozen models, not the paper's 20
with hundreds of configurations. So an example is a stretch of operators of a trace: 80% of the stretches
of the known models are trained on, the others are the *seen* test, and all stretches of a model that is
left out are the *unseen* one.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import kineto
import leave_one_out
import numpy as np
import torch

from xmem.devices.gpus import Device, find_device
from xmem.occupancy.kernel_model import KernelModel
from xmem.occupancy.learned.graph import graph_in_order
from xmem.occupancy.learned.networks import NETWORKS
from xmem.occupancy.learned.training import Example, errors, predict, train

GPUS = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100-PG509-200": "a100-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-DGXS-32GB": "v100-32gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
    "Tesla T4": "t4",
}


def examples_of(trace: kineto.Trace, length: int, most: int) -> list[Example]:
    """Return stretches of a trace that lie end to end, at most so many, evenly spread."""
    gpu: Device = find_device(GPUS[trace.gpu])
    calls = sorted(trace.calls, key=lambda call: call.begins_ns[0])
    found = []
    for begin in range(0, len(calls), length):
        part = calls[begin : begin + length]
        if len(part) < min(length, len(calls)) // 2:
            continue
        launches = [launch for call in part for launch in call.recorded.launches]
        occupancy = float(leave_one_out.filled(launches, trace).steady.mean())
        graph = graph_in_order([call.recorded.problem for call in part])
        found.append(Example(trace.name, graph, gpu, max(occupancy, 1e-4), len(launches)))
    step = max(len(found) / most, 1.0)
    return [found[int(row * step)] for row in range(min(most, len(found)))]


def whole(values: Sequence[float], examples: Sequence[Example]) -> float:
    """Return a model's occupancy from those of its stretches, weighed by their launches."""
    return float(np.average(values, weights=[item.launches for item in examples]))


def judge(traces: Sequence[kineto.Trace], arguments: argparse.Namespace) -> dict[str, object]:
    """Return errors of every network, of the constant and of the white box, one judged model left out."""
    stretches = {trace.name: examples_of(trace, arguments.length, arguments.most) for trace in traces}
    judged = [trace for trace in traces if trace.compute_capability == leave_one_out.JUDGED]
    rows: dict[str, dict[str, list[float]]] = {}

    def note(name: str, **values: float) -> None:
        for key, value in values.items():
            rows.setdefault(name, {}).setdefault(key, []).append(value)

    for trace in judged:
        known = [item for name, items in stretches.items() if name != trace.name for item in items]
        random.Random(arguments.seed).shuffle(known)
        cut = len(known) * 4 // 5
        training, seen, unseen = known[:cut], known[cut:], stretches[trace.name]
        real = whole([item.occupancy for item in unseen], unseen)
        mean = float(np.mean([item.occupancy for item in training]))
        guesses = {"constant": (np.full(len(seen), mean), np.full(len(unseen), mean))}
        for name, make in NETWORKS.items():
            begun = time.monotonic()
            network, scale = train(
                make,
                training,
                width=arguments.width,
                epochs=arguments.epochs,
                learning_rate=arguments.learning_rate,
                seed=arguments.seed,
            )
            guesses[name] = (predict(network, scale, seen), predict(network, scale, unseen))
            note(name, seconds=time.monotonic() - begun)
        for name, (on_seen, on_unseen) in guesses.items():
            seen_mre, seen_mse = errors(on_seen, [item.occupancy for item in seen])
            mre, mse = errors(on_unseen, [item.occupancy for item in unseen])
            model = abs(whole(list(on_unseen), unseen) / real - 1)
            note(name, seen_mre=seen_mre, seen_mse=seen_mse, unseen_mre=mre, unseen_mse=mse, model_mre=model)
        white = [call.recorded for other in traces if other is not trace for call in other.calls]
        values, kept = _white_box(KernelModel(white), unseen, trace)
        mre, mse = errors(values, [item.occupancy for item in kept])
        note(
            "white box",
            unseen_mre=mre,
            unseen_mse=mse,
            model_mre=abs(whole(values, kept) / whole([item.occupancy for item in kept], kept) - 1),
        )
        print(trace.name, {name: f"{found['model_mre'][-1]:.1%}" for name, found in rows.items()}, flush=True)
    return {
        "width": arguments.width,
        "epochs": arguments.epochs,
        "examples": {name: len(items) for name, items in stretches.items()},
        "models_left_out": [trace.name for trace in judged],
        "errors": rows,
    }


def _white_box(
    model: KernelModel, examples: Sequence[Example], trace: kineto.Trace
) -> tuple[list[float], list[Example]]:
    """Return what the kernel model says of the same stretches."""
    values, kept = [], []
    for item in examples:
        predicted = [
            model.predict(problem, trace.compute_capability, trace.multiprocessors)
            for problem in item.graph.problems
        ]
        launches = [launch for found in predicted if found for launch in found.launches]
        if launches:
            values.append(float(leave_one_out.filled(launches, trace).steady.mean()))
            kept.append(item)
    return values, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--length", type=int, default=48, help="operators of a stretch")
    parser.add_argument("--most", type=int, default=60, help="stretches of a trace")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    traces = [trace for trace in leave_one_out.read_all(arguments.traces) if trace.gpu in GPUS]
    found = judge(traces, arguments)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\n{'':14}{'seen MRE':>10}{'seen MSE':>10}{'unseen MRE':>12}{'unseen MSE':>12}{'whole model':>13}")
    for name, row in found["errors"].items():  # type: ignore[attr-defined]
        cells = "".join(
            f"{np.mean(row[key]):{width}.{digits}}" if key in row else " " * width
            for key, width, digits in (
                ("seen_mre", 10, "1%"),
                ("seen_mse", 10, "4f"),
                ("unseen_mre", 12, "1%"),
                ("unseen_mse", 12, "4f"),
                ("model_mre", 13, "1%"),
            )
        )
        print(f"{name:14}{cells}")


if __name__ == "__main__":
    main()
