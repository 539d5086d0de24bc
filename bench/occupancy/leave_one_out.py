"""Launch-mean occupancy of whole models that the kernel model has not seen: public traces, one model
left out each.

Two ways are judged. ``every launch predicted``: nothing of the model's kernels is known but its
operators and shapes. ``library kernels predicted``: PyTorch's own launches are known, as the phantom GPU
gives them; the trace's stand in for them here. The constant is the mean of the other models.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import kineto
import numpy as np

from xmem.occupancy.averages import achieved
from xmem.occupancy.calculator import Filling, filling, residency
from xmem.occupancy.durations import Roofline, fit_roofline, roofline_ns
from xmem.occupancy.kernel_model import KernelLaunch, KernelModel
from xmem.occupancy.limits import limits_of

JUDGED = (9, 0)
LIBRARY = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::cudnn_convolution")
DEFINITIONS = ("launch_mean", "launch_mean_active", "time_mean", "wall_mean")


def read_all(paths: Iterable[Path]) -> list[kineto.Trace]:
    """Read all traces with kernels; of two of the same model on the same GPU, the first."""
    found: dict[tuple[str, str], kineto.Trace] = {}
    for path in paths:
        for file in sorted(path.glob("*.json*")) if path.is_dir() else [path]:
            trace = kineto.read(file)
            if trace is not None and trace.calls:
                found.setdefault((trace.gpu, _fingerprint(trace)), trace)
    return list(found.values())


def _fingerprint(trace: kineto.Trace) -> str:
    return f"{len(trace.launches())} {len(trace.calls)} {sum(launch.blocks for launch in trace.launches())}"


def filled(launches: Sequence[KernelLaunch], trace: kineto.Trace) -> Filling:
    """Return how the launches fill the trace's GPU."""
    limits = limits_of(trace.compute_capability)
    kernels = [launch.kernel for launch in launches]
    held = residency(
        limits,
        [kernel.threads for kernel in kernels],
        [kernel.registers for kernel in kernels],
        [kernel.shared_bytes for kernel in kernels],
    )
    return filling(limits, trace.multiprocessors, held, [launch.blocks for launch in launches])


def means(
    launches: Sequence[KernelLaunch], durations_ns: Sequence[float], gaps_ns: float, trace: kineto.Trace
) -> dict[str, float]:
    """Return the four definitions of a model's occupancy."""
    columns = filled(launches, trace)
    weights = np.asarray(durations_ns, dtype=float)
    by_time = float(np.average(columns.elapsed, weights=weights))
    return {
        "launch_mean": float(columns.steady.mean()),
        "launch_mean_active": float(achieved(columns).expected.mean()),
        "time_mean": by_time,
        "wall_mean": by_time * weights.sum() / (weights.sum() + gaps_ns),
    }


def predicted(
    trace: kineto.Trace, model: KernelModel, roofline: Roofline, *, own_are_known: bool
) -> tuple[list[KernelLaunch], list[float], int]:
    """Return the predicted launches, their durations, and how many launches have no prediction."""
    launches: list[KernelLaunch] = []
    durations: list[float] = []
    missing = 0
    known: dict[Any, Any] = {}
    for call in trace.calls:
        problem = call.recorded.problem
        if own_are_known and call.recorded.problem.operator not in LIBRARY:
            made: Sequence[KernelLaunch] = call.recorded.launches
        else:
            if problem not in known:
                known[problem] = model.predict(problem, trace.compute_capability, trace.multiprocessors)
            if known[problem] is None:
                missing += len(call.recorded.launches)
                continue
            made = known[problem].launches
        launches += made
        took = roofline_ns(roofline, problem, trace.multiprocessors)
        durations += [took * launch.share for launch in made]
    return launches, durations, missing


def truth(trace: kineto.Trace) -> tuple[list[KernelLaunch], list[int], float]:
    """Return the recorded launches of operators, their durations, and the time between them without a
    kernel."""
    launches = trace.launches()
    durations = [time for call in trace.calls for time in call.durations_ns]
    spans = sorted(
        (begin, begin + time)
        for call in trace.calls
        for begin, time in zip(call.begins_ns, call.durations_ns, strict=True)
    )
    end, idle = spans[0][1], 0
    for begin, until in spans[1:]:
        idle += max(begin - end, 0)
        end = max(end, until)
    return launches, durations, float(idle)


def judge(traces: Sequence[kineto.Trace], judged: Sequence[kineto.Trace]) -> dict[str, Any]:
    """Return errors by definition, way and model."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for trace in judged:
        others = [call for other in traces if other is not trace for call in other.calls]
        model = KernelModel([call.recorded for call in others])
        roofline = fit_roofline(
            [
                (call.recorded.problem, call.recorded.multiprocessors, sum(call.durations_ns))
                for other in judged
                if other is not trace
                for call in other.calls
            ]
        )
        launches, durations, idle = truth(trace)
        real = means(launches, durations, idle, trace)
        rows[trace.name] = {"truth": real}
        for way, own in (("every launch predicted", False), ("library kernels predicted", True)):
            made, lasting, missing = predicted(trace, model, roofline, own_are_known=own)
            gaps = idle / len(launches) * len(made)
            rows[trace.name][way] = means(made, lasting, gaps, trace) | {
                "launches": len(launches),
                "predicted": len(made),
                "unpredicted": missing,
            }
    for trace in judged:
        others = [rows[other.name]["truth"] for other in judged if other is not trace]
        rows[trace.name]["constant"] = {
            key: sum(other[key] for other in others) / len(others) for key in DEFINITIONS
        }
    summary = {
        way: {key: _mre([(row[way][key], row["truth"][key]) for row in rows.values()]) for key in DEFINITIONS}
        for way in ("every launch predicted", "library kernels predicted", "constant")
    }
    return {"models": rows, "mean_relative_error": summary}


def _mre(pairs: Sequence[tuple[float, float]]) -> float:
    return round(math.fsum(abs(ours / real - 1) for ours, real in pairs) / len(pairs), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="traces or folders of them")
    parser.add_argument("--held-out", nargs="*", type=Path, default=[], help="traces that are only judged")
    arguments = parser.parse_args()
    traces = read_all(arguments.traces)
    judged = [trace for trace in traces if trace.compute_capability == JUDGED]
    report(judge(traces, judged), "one model left out")
    if arguments.held_out:
        report(judge(traces, read_all(arguments.held_out)), "held out")


def report(found: dict[str, Any], title: str) -> None:
    """Print errors as a table."""
    print(f"## {title}")
    for key in DEFINITIONS:
        print(
            f"\n{key:34}{'truth':>8}{'every':>8}{'error':>8}{'library':>9}{'error':>8}{'constant':>9}{'error':>8}"
        )
        for name, row in found["models"].items():
            real = row["truth"][key]
            cells = "".join(
                f"{row[way][key]:8.4f}{row[way][key] / real - 1:+8.1%} "
                for way in ("every launch predicted", "library kernels predicted", "constant")
            )
            print(f"{name[:33]:34}{real:8.4f}{cells}")
        total = found["mean_relative_error"]
        print(
            f"{'mean relative error':34}{'':8}{total['every launch predicted'][key]:16.1%}"
            f"{total['library kernels predicted'][key]:17.1%}{total['constant'][key]:17.1%}"
        )


if __name__ == "__main__":
    main()
