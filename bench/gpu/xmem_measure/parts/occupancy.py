"""Part 5: which kernels a forward pass, a training step or a program launches, how, and for how long.

Occupancy follows from the launch; where Nsight Compute is installed, ``nsight`` adds what it measured.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from workloads import Inference, Job, prepare, prepare_inference, train
from workloads.programs import PROGRAMS
from xmem_measure.columns import pack
from xmem_measure.parts.operators import flags
from xmem_measure.session import Session

_WARM_UPS = 2
# What Kineto writes about a launch: registers a thread, shared memory in bytes.
_KERNEL_FIELDS = {"registers": "registers per thread", "shared_bytes": "shared memory", "stream": "stream"}


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Profile what the configuration names, warmed up: a program, a job's last step, or a forward pass."""
    if "program" in config:
        return _program(config["program"], session)
    if "family" in config:
        return _training_step(config, session)
    model, inputs = prepare_inference(Inference(**config), session.scale)
    session.start()
    device = session.meter.device
    model = model.to(device)
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    for _ in range(_WARM_UPS):
        forward(model, inputs)
    return _profiled(session, lambda: forward(model, inputs))


def _program(name: str, session: Session) -> dict[str, Any]:
    session.start()
    device = session.meter.device
    PROGRAMS[name](device)
    return _profiled(session, lambda: PROGRAMS[name](device))


def _training_step(config: dict[str, Any], session: Session) -> dict[str, Any]:
    prepared = prepare(Job(**config), session.scale)
    session.start()
    profiler = _profiler(session)

    def after_iteration(index: int) -> None:
        session.meter.usage()
        if index == prepared.job.iterations - 2:
            profiler.start()
        elif index == prepared.job.iterations - 1:
            profiler.stop()

    train(prepared, session.meter.device, after_iteration)
    return {"flags": flags(), **launches(_trace(profiler))}


def _profiled(session: Session, work: Callable[[], object]) -> dict[str, Any]:
    session.meter.usage()
    with _profiler(session) as profiler:
        work()
        session.meter.usage()
    return {"flags": flags(), **launches(_trace(profiler))}


def _profiler(session: Session) -> profile:
    activities = [ProfilerActivity.CPU]
    if session.meter.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, record_shapes=True)


def _trace(profiler: profile) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    return trace


def forward(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """One pass without gradients."""
    with torch.no_grad():
        if "" in inputs:
            model(inputs[""])
        else:
            model(**inputs)


def launches(trace: dict[str, Any]) -> dict[str, Any]:
    """The kernels of a profile, in order: names and operators once, numbers as columns."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    operators = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    kernels = sorted(
        (event for event in events if event.get("cat") == "kernel"), key=lambda e: float(e["ts"])
    )
    names: dict[str, int] = {}
    callers: dict[str, int] = {}
    columns: dict[str, list[int]] = {
        name: [] for name in ("kernel", "operator", "duration_ns", "occupancy_percent", *_KERNEL_FIELDS)
    }
    for axis in "xyz":
        columns |= {f"grid_{axis}": [], f"block_{axis}": []}
    for kernel in kernels:
        arguments = kernel["args"]
        operator = operators.get(arguments.get("External id"))
        caller = json.dumps(_operator(operator)) if operator else "null"
        columns["kernel"].append(names.setdefault(kernel["name"], len(names)))
        columns["operator"].append(callers.setdefault(caller, len(callers)))
        columns["duration_ns"].append(round(float(kernel["dur"]) * 1000))
        columns["occupancy_percent"].append(int(arguments.get("est. achieved occupancy %", -1)))
        for name, field in _KERNEL_FIELDS.items():
            columns[name].append(int(arguments.get(field, -1)))
        for index, axis in enumerate("xyz"):
            columns[f"grid_{axis}"].append(arguments["grid"][index])
            columns[f"block_{axis}"].append(arguments["block"][index])
    return {
        "kernels": list(names),
        "operators": [json.loads(caller) for caller in callers],
        "launches": pack(columns),
    }


def _operator(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args", {})
    return {
        "name": event["name"],
        "shapes": arguments.get("Input Dims", []),
        "dtypes": arguments.get("Input type", []),
    }
