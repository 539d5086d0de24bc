"""Requests to schedulers: to the letter, since they are pasted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from estimate_samples import DOES_NOT_FIT, FITS, MIB, NO_GPU
from training_sample import training
from xmem.cli.main import app
from xmem.devices.gpus import devices, find_device
from xmem.estimation.estimate import Estimate, Measured, RankPeak, Scaling, Verdict
from xmem.reports.schedulers import Scheduler, render

REASON = """\
# 3.43 GiB of each GPU: 3.29 GiB that PyTorch reserves at its peak, 146.00 MiB of CUDA context
# RTX 3060 12 GB, 11.76 GiB: fits
"""

HAMI = """\
spec:
  containers:
    - name: train
      resources:
        limits:
          nvidia.com/gpu: 1
          nvidia.com/gpumem: 3514  # MiB of each GPU"""

KAI = """\
metadata:
  labels:
    kai.scheduler/queue: default-queue  # yours
  annotations:
    gpu-memory: "3514"  # MiB of each GPU
spec:
  schedulerName: kai-scheduler"""

SLURM = """\
# The type is what AutoDetect calls this GPU; `scontrol show nodes` lists those of your site.
#SBATCH --gres=gpu:nvidia_geforce_rtx_3060:1"""

RAY = """\
# Ray shares a GPU by this fraction and does not enforce it.
@ray.remote(num_gpus=0.292)"""

SKYPILOT = "# xMem does not know SkyPilot's name for RTX 3060 12 GB."


def on(estimate: Estimate, name: str) -> Estimate:
    device = find_device(name)
    capacity = device.total_memory_bytes
    return replace(
        estimate,
        target=replace(estimate.target, gpu=device.slug, capacity_bytes=capacity),
        verdict=Verdict(device.name, capacity, fits=True, margin_bytes=capacity - estimate.device_peak_bytes),
    )


@pytest.mark.parametrize(
    ("scheduler", "request_"),
    [("k8s-hami", HAMI), ("kai", KAI), ("slurm", SLURM), ("ray", RAY), ("skypilot", SKYPILOT)],
)
def test_requests_for_a_job_that_fits(scheduler: str, request_: str) -> None:
    assert render(FITS, Scheduler(scheduler)) == REASON + request_


@pytest.mark.parametrize("scheduler", Scheduler)
def test_nothing_is_requested_for_a_job_that_does_not_fit(scheduler: Scheduler) -> None:
    lines = render(DOES_NOT_FIT, scheduler).splitlines()
    assert all(line.startswith("# ") for line in lines)
    assert "does not fit" in lines[1]


def test_the_upper_bound_is_requested_where_asked_for() -> None:
    request = render(FITS, Scheduler.K8S_HAMI, upper=True)
    assert "nvidia.com/gpumem: 3900 " in request  # 3900 MiB, context included
    assert "upper bound with 0.9 confidence" in request
    assert "upper bound" not in render(FITS, Scheduler.K8S_HAMI)


def test_accelerators_have_the_names_of_ray_and_skypilot() -> None:
    assert 'accelerator_type="A100-80G"' in render(on(FITS, "a100-80gb"), Scheduler.RAY)
    assert render(on(FITS, "a100-80gb"), Scheduler.SKYPILOT).endswith("  accelerators: A100-80GB:1")


def test_rays_fraction_is_rounded_up() -> None:
    capacity = find_device("t4").total_memory_bytes
    tight = replace(on(FITS, "t4"), peak_reserved_bytes=capacity // 2 + 1, context_bytes=0)
    assert "num_gpus=0.5001" in render(tight, Scheduler.RAY)
    part = replace(tight, target=replace(tight.target, capacity_bytes=8 << 30))
    assert "num_gpus=0.5001" in render(part, Scheduler.RAY)  # of the card, not of the limit
    full = replace(tight, peak_reserved_bytes=capacity)
    assert "num_gpus=1," in render(full, Scheduler.RAY)


def test_without_a_gpu_the_context_is_the_largest_known() -> None:
    estimate = replace(NO_GPU, context_bytes=0, device_peak_bytes=NO_GPU.peak_reserved_bytes)
    context = max(device.context_bytes for device in devices())
    assert f"gpumem: {3368 + -(-context // MIB)} " in render(estimate, Scheduler.K8S_HAMI)
    assert render(estimate, Scheduler.SLURM).endswith("#SBATCH --gres=gpu:1")
    assert render(estimate, Scheduler.RAY).endswith("@ray.remote(num_gpus=1)")
    assert "--gpu" in render(estimate, Scheduler.RAY)


def test_without_a_gpu_skypilot_is_asked_for_any_that_is_large_enough() -> None:
    large = replace(NO_GPU, context_bytes=0, peak_reserved_bytes=60 << 30)
    assert render(large, Scheduler.SKYPILOT).endswith("accelerators: {H100:1, A100-80GB:1, H200:1}")
    huge = replace(large, peak_reserved_bytes=1 << 40)
    assert render(huge, Scheduler.SKYPILOT).endswith(
        "# None of the GPUs that xMem can name for SkyPilot is large enough."
    )


def test_a_size_alone_is_enough_memory_for_any_gpu_that_has_it() -> None:
    sized = replace(on(FITS, "t4"), target=replace(FITS.target, gpu=None, capacity_bytes=70 << 30))
    assert render(sized, Scheduler.SKYPILOT).endswith("accelerators: {H100:1, A100-80GB:1, H200:1}")
    assert "at least 3514 MiB" in render(sized, Scheduler.SLURM)


def test_the_most_that_a_fitted_model_leaves_open_is_requested() -> None:
    scaling = Scaling({"batch": 8}, ({"batch": 2},), 9, 0, 1, 3000 * MIB, 4000 * MIB)
    assert "gpumem: 4146 " in render(replace(FITS, scaling=scaling), Scheduler.K8S_HAMI)


def test_every_gpu_of_the_job_is_requested() -> None:
    ranks = tuple(RankPeak(rank, rank, (3368 + rank) * MIB, 3200 * MIB) for rank in range(4))
    measured = Measured(3368 * MIB, 3200 * MIB, True, ranks)
    estimate = replace(on(FITS, "h100"), measured=measured)
    hami = render(estimate, Scheduler.K8S_HAMI)
    assert "nvidia.com/gpu: 4\n" in hami
    assert f"gpumem: {3371 + 146} " in hami
    assert 'gpu-fraction-num-devices: "4"' in render(estimate, Scheduler.KAI)
    assert render(estimate, Scheduler.SLURM).endswith("_h100_80gb_hbm3:4")
    assert 'num_gpus=4, accelerator_type="H100"' in render(estimate, Scheduler.RAY)
    assert render(estimate, Scheduler.SKYPILOT).endswith("accelerators: H100:4")


def test_the_option(tmp_path: Path) -> None:
    trace = str(training().write(tmp_path / "trace.json"))

    def estimate(*options: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["estimate", trace, "--gpu", "t4", *options])
        return result.exit_code, result.stdout, result.stderr

    status, stdout, _ = estimate("--format", "kai")
    peak_bytes = json.loads(estimate("--json")[1])["device_peak_bytes"]
    assert status == 0
    assert f'gpu-memory: "{-(-peak_bytes // MIB)}"' in stdout
    assert estimate("--format", "kai", "--json")[0] == 2
    assert estimate("--format", "kubernetes")[0] == 2
    assert estimate("--format", "slurm", "--capacity", "180MiB")[0] == 1
