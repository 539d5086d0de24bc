"""The request that an estimate implies, in the syntax of a scheduler, with the reason as a comment.

Documentation of the fields:

- HAMi: ``nvidia.com/gpu`` and ``nvidia.com/gpumem`` (MiB of each virtual GPU, a hard limit), README and
  ``examples/nvidia`` of github.com/Project-HAMi/HAMi.
- KAI Scheduler: the annotation ``gpu-memory`` (MiB, not enforced), ``docs/gpu-sharing`` of
  github.com/NVIDIA/KAI-Scheduler; ``gpu-fraction-num-devices`` in its ``pkg/common/constants``.
- Slurm: ``--gres=gpu:TYPE:COUNT``, slurm.schedmd.com/gres.html. It counts GPUs, not their memory
  (``--mem-per-gpu`` is host memory); TYPE is set by the site or AutoDetect: the GPU's name with underscores.
- Ray: ``num_gpus``, a fraction that Ray does not enforce, and ``accelerator_type``,
  docs.ray.io/en/latest/ray-core/scheduling/accelerators.html and .../ray-core/accelerator-types.html.
- SkyPilot: ``resources.accelerators``, a set is tried starting with the cheapest,
  docs.skypilot.co/en/latest/reference/yaml-spec.html; names as ``sky show-gpus`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from xmem.devices.gpus import Device, devices
from xmem.estimation.estimate import Estimate
from xmem.gate.limits import interval_of
from xmem.records import dataclass
from xmem.text.units import format_bytes

_MIB = 1 << 20

_RAY_TYPES = {
    "t4": "T4",
    "v100-16gb": "V100",
    "v100-32gb": "V100",
    "a10g": "A10G",
    "a100-pcie-40gb": "A100-40G",
    "a100-40gb": "A100-40G",
    "a100-80gb": "A100-80G",
    "l4": "L4",
    "l40s": "L40S",
    "h20": "H20",
    "h100-pcie": "H100",
    "h100": "H100",
    "h200": "H200",
    "b200": "B200",
    "rtx-pro-6000": "RTX-PRO-6000",
    "mi300x": "AMD-Instinct-MI300X-OAM",
}

_SKYPILOT_NAMES = {
    "t4": "T4",
    "v100-16gb": "V100",
    "v100-32gb": "V100-32GB",
    "a10": "A10",
    "a10g": "A10G",
    "a100-pcie-40gb": "A100",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "l4": "L4",
    "l40s": "L40S",
    "h100-pcie": "H100",
    "h100": "H100",
    "h200": "H200",
}


class Scheduler(StrEnum):
    """Scheduler to write a request for."""

    K8S_HAMI = "k8s-hami"
    KAI = "kai"
    SLURM = "slurm"
    RAY = "ray"
    SKYPILOT = "skypilot"


@dataclass(frozen=True)
class _Request:
    """Needs of the job, independent of the scheduler.

    Attributes:
        beside_context_bytes: Memory that the card must have beside the context: that of the estimate, the
            most that a fitted model leaves open, or the upper bound of the interval.
        context_bytes: CUDA context; the largest known one where no GPU was named.
        gpus: Number of GPUs.
        device: The GPU, None when none was named or only its size is known.
        capacity_bytes: Capacity of the GPU, -1 when none was named.
        confidence: Confidence that the job needs no more, None where no bound was requested.
    """

    beside_context_bytes: int
    context_bytes: int
    gpus: int
    device: Device | None
    capacity_bytes: int
    confidence: float | None

    @property
    def device_bytes(self) -> int:
        return self.beside_context_bytes + self.context_bytes

    @property
    def device_mib(self) -> int:
        return -(-self.device_bytes // _MIB)


def render(estimate: Estimate, scheduler: Scheduler, *, upper: bool = False) -> str:
    """Return the lines to paste; for a job that does not fit they say so and request nothing.

    Args:
        estimate: Estimate of the job.
        scheduler: Scheduler to write the request for.
        upper: Request the upper bound of the estimate's interval, not the estimate.

    Raises:
        ConfigError: There is no upper bound.
    """
    request = _request(estimate, upper)
    lines = _reason(estimate, request)
    if estimate.fits is False:
        lines.append("# It does not fit: nothing to request on this GPU.")
    else:
        lines += _REQUESTS[scheduler](request)
    return "\n".join(lines)


def _request(estimate: Estimate, upper: bool) -> _Request:
    slug = estimate.target.gpu
    ranks = estimate.measured.ranks if estimate.measured else ()
    beside = [
        estimate.device_peak_bytes - estimate.context_bytes,
        estimate.peak_reserved_bytes,
        *(rank.peak_reserved_bytes for rank in ranks),  # in early versions not part of the device peak
    ]
    if estimate.scaling is not None:
        beside.append(estimate.scaling.peak_reserved_most_bytes + estimate.outside_bytes)
    interval = interval_of(estimate) if upper else None
    if interval is not None:
        beside.append(interval.high_bytes - estimate.context_bytes)
    named = estimate.target.capacity_bytes >= 0
    return _Request(
        # No process holds more of a GPU than it has; with less memory than requested, caches are released.
        beside_context_bytes=min(max(beside), estimate.target.capacity_bytes - estimate.context_bytes)
        if named
        else max(beside),
        context_bytes=estimate.context_bytes if named else max(known.context_bytes for known in devices()),
        gpus=len({(rank.rank, rank.device) for rank in ranks}) or 1,
        device=next((known for known in devices() if known.slug == slug), None),
        capacity_bytes=estimate.target.capacity_bytes,
        confidence=None if interval is None else interval.confidence,
    )


def _reason(estimate: Estimate, request: _Request) -> list[str]:
    outside_bytes = min(estimate.outside_bytes, request.beside_context_bytes)
    reserved = format_bytes(request.beside_context_bytes - outside_bytes)
    context = format_bytes(request.context_bytes)
    outside = f", {format_bytes(outside_bytes)} outside of PyTorch" if outside_bytes else ""
    lines = [
        f"# {format_bytes(request.device_bytes)} of each GPU: {reserved} that PyTorch reserves at its peak, "
        f"{context} of CUDA context{outside}"
    ]
    if request.confidence is not None:
        lines.append(f"# The upper bound with {request.confidence:.6g} confidence, not the estimate itself.")
    if estimate.verdict is None:
        lines.append("# No GPU was named: the context is the largest known; name one with --gpu to be sure.")
    else:
        verdict = estimate.verdict
        answer = "fits" if verdict.fits else "does not fit"
        lines.append(f"# {verdict.gpu}, {format_bytes(verdict.capacity_bytes)}: {answer}")
    if estimate.doubt is not None:
        lines.append(f"# {estimate.doubt}.")
    if busy := estimate.occupancy:
        mean = busy.launch_mean
        lines.append(
            f"# Occupancy {mean.value:.1%} ({mean.low:.1%} to {mean.high:.1%}) on {busy.gpu}, mean of "
            f"{busy.launches - busy.unknown:,} launches: how much of the multiprocessors its kernels fill."
        )
    return lines


def _k8s_hami(request: _Request) -> list[str]:
    return [
        "spec:",
        "  containers:",
        "    - name: train",
        "      resources:",
        "        limits:",
        f"          nvidia.com/gpu: {request.gpus}",
        f"          nvidia.com/gpumem: {request.device_mib}  # MiB of each GPU",
    ]


def _kai(request: _Request) -> list[str]:
    several = [f'    gpu-fraction-num-devices: "{request.gpus}"'] if request.gpus > 1 else []
    return [
        "metadata:",
        "  labels:",
        "    kai.scheduler/queue: default-queue  # yours",
        "  annotations:",
        f'    gpu-memory: "{request.device_mib}"  # MiB of each GPU',
        *several,
        "spec:",
        "  schedulerName: kai-scheduler",
    ]


def _slurm(request: _Request) -> list[str]:
    if request.device is None:
        return [
            f"# Slurm counts GPUs, not their memory: choose a type of at least {request.device_mib} MiB.",
            f"#SBATCH --gres=gpu:{request.gpus}",
        ]
    kind = request.device.full_name.lower().replace(" ", "_")
    return [
        "# The type is what AutoDetect calls this GPU; `scontrol show nodes` lists those of your site.",
        f"#SBATCH --gres=gpu:{kind}:{request.gpus}",
    ]


def _ray(request: _Request) -> list[str]:
    kind = _RAY_TYPES.get(request.device.slug) if request.device else None
    arguments = [f"num_gpus={_ray_gpus(request)}"]
    if kind is not None:
        arguments.append(f'accelerator_type="{kind}"')
    note = "Ray shares a GPU by this fraction and does not enforce it."
    if request.gpus > 1 or request.capacity_bytes < 0:
        note = "Ray counts GPUs, not their memory."
    return [f"# {note}", f"@ray.remote({', '.join(arguments)})"]


def _ray_gpus(request: _Request) -> str:
    """Return a count, or the share of one GPU in Ray's steps of a ten-thousandth, rounded up."""
    if request.gpus > 1 or request.capacity_bytes < 0:
        return str(request.gpus)
    whole = request.capacity_bytes if request.device is None else request.device.total_memory_bytes
    steps = -(-request.device_bytes * 10_000 // whole)
    return f"{min(steps, 10_000) / 10_000:g}"


def _skypilot(request: _Request) -> list[str]:
    if request.device is not None and request.device.slug not in _SKYPILOT_NAMES:
        return [f"# xMem does not know SkyPilot's name for {request.device.name}."]
    if request.device is not None:
        names = [_SKYPILOT_NAMES[request.device.slug]]
    else:
        # By size alone, each with its own context; if two GPUs share a name, the smaller counts.
        small = {_SKYPILOT_NAMES[known.slug] for known in _in_skypilot() if not _holds(known, request)}
        names = list(dict.fromkeys(_SKYPILOT_NAMES[known.slug] for known in _in_skypilot()))
        names = [name for name in names if name not in small]
    if not names:
        return ["# None of the GPUs that xMem can name for SkyPilot is large enough."]
    asked = ", ".join(f"{name}:{request.gpus}" for name in names)
    return ["resources:", f"  accelerators: {asked if len(names) == 1 else f'{{{asked}}}'}"]


def _in_skypilot() -> list[Device]:
    known = [device for device in devices() if device.slug in _SKYPILOT_NAMES]
    return sorted(known, key=lambda device: device.total_memory_bytes)


def _holds(device: Device, request: _Request) -> bool:
    if request.capacity_bytes >= 0:
        return device.total_memory_bytes >= request.capacity_bytes
    return device.usable_bytes >= request.beside_context_bytes


_REQUESTS: dict[Scheduler, Callable[[_Request], Sequence[str]]] = {
    Scheduler.K8S_HAMI: _k8s_hami,
    Scheduler.KAI: _kai,
    Scheduler.SLURM: _slurm,
    Scheduler.RAY: _ray,
    Scheduler.SKYPILOT: _skypilot,
}
