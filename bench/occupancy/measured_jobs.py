"""Runs profiles of ``bench/gpu`` anew, one after the other in one process: the script that ``measured.py``
captures on a phantom GPU.

It takes a file with a JSON list of configurations. Around what the kit profiled of each it launches
``torch.cuda._sleep``, which nothing else uses: once before, twice after. So the launches of a profile can
be told from its warm-up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from workloads import Inference, Job, prepare, prepare_inference, train
from workloads.programs import PROGRAMS

_WARM_UPS = 2  # as xmem_measure.parts.occupancy


def _mark(count: int) -> None:
    """Launch as many markers."""
    for _ in range(count):
        torch.cuda._sleep(1)


def run(config: dict[str, Any], device: torch.device) -> None:
    """Do what ``xmem_measure.parts.occupancy`` does, without a profiler."""
    if "program" in config:
        marked(lambda: PROGRAMS[config["program"]](device), 1)
    elif "family" in config:
        _train(config, device)
    else:
        model, inputs = prepare_inference(Inference(**config))
        model = model.to(device)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}

        def forward() -> None:
            with torch.no_grad():
                model(inputs[""]) if "" in inputs else model(**inputs)

        marked(forward, _WARM_UPS)


def marked(work: Callable[[], object], warm_ups: int) -> None:
    """Do the work with markers around it, after it was done without."""
    for _ in range(warm_ups):
        work()
    _mark(1)
    work()
    _mark(2)


def _train(config: dict[str, Any], device: torch.device) -> None:
    prepared = prepare(Job(**config))
    last = prepared.job.iterations - 1

    def after_iteration(index: int) -> None:
        if index >= last - 1:
            _mark(1 if index < last else 2)

    train(prepared, device, after_iteration)


def main() -> None:
    device = torch.device("cuda")
    matmul, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    defaults = matmul.allow_tf32, convolutions.allow_tf32
    for config in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        matmul.allow_tf32, convolutions.allow_tf32 = defaults  # jobs set them for the process
        run(config, device)


if __name__ == "__main__":
    main()
