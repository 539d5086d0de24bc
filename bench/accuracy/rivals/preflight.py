"""The package torch-preflight, asked for the model as an entry point: the script's own is not a literal."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from workloads import Job


def peak_bytes(job: Job) -> int:
    """Its projection of peak memory for training, less the CUDA context that it adds.

    Raises:
        ValueError: It does not resolve the model, or finds no activations in it.
    """
    size = ["--image-size", str(job.pixels)] if job.family == "cnn" else ["--seq-len", str(job.tokens)]
    command = [
        *[sys.executable, "-m", "torch_preflight", "estimate", "--format", "json"],
        *["--model", "accuracy.rivals.factory:model", "--model-args", f"name={job.model}"],
        *["--batch-size", str(job.batch), "--optimizer", job.optimizer.rpartition(".")[2].lower()],
        *["--dtype", "fp32", "--gpu-memory", "1024GiB", *size],
    ]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise ValueError(done.stderr.strip()[-300:]) from None
    if not answer.get("resolved"):
        raise ValueError(answer["model"]["reason"])
    if not answer["breakdown"]["activations"]:
        raise ValueError("resolves the model, but not its activations")
    return int(answer["total_bytes"] - answer["breakdown"]["CUDA_context"])
