"""The question about a run: a GPU, and the release and settings of PyTorch there; checked and frozen once."""

from __future__ import annotations

from dataclasses import replace

from xmem.devices.gpus import Device, asked_device, custom_device, find_device
from xmem.estimation.calibration import DEFAULT_CONFIDENCE, require_confidence
from xmem.records import dataclass
from xmem.run.job_settings import JobSettings, job_settings
from xmem.simulation.alloc_conf import DEFAULT_TORCH_VERSION
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.trace.trace import Trace

_DESCRIBED = "rtx-3060"  # to scripts, where no GPU is named


@dataclass(frozen=True)
class Question:
    """The question about a run; None stands for the recorded value.

    Attributes:
        device: The GPU that the job will run on, None for one without limit.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job.
        torch_version: PyTorch version that will run it, such as ``2.13.0``.
        confidence: Confidence of each bound of the interval, at least 0.5 and less than 1.
    """

    device: Device | None = None
    alloc_conf: str | None = None
    torch_version: str | None = None
    confidence: float = DEFAULT_CONFIDENCE

    def on(self, device: Device | None) -> Question:
        """Return the same question about another GPU."""
        return replace(self, device=device)

    @property
    def described_device(self) -> Device:
        """The GPU that a script sees in a capture: an RTX 3060 where none was named, or one like it."""
        if self.device is not None and self.device.compute_capability is not None:
            return self.device
        described = find_device(_DESCRIBED)
        if self.device is None:
            return described
        return custom_device(self.device.total_memory_bytes, like=described)

    def settings_of(self, trace: Trace) -> JobSettings:
        """Return the release and the settings of the job: as requested, else those of its trace."""
        return job_settings(trace, self.alloc_conf, self.torch_version)


AS_RECORDED = Question()
"""Question about the run as it was, on a GPU without limit."""


def ask(
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
) -> Question:
    """Build a question as users put it: a GPU by name, and a capacity that wins over that of the GPU.

    Everything is checked now, before reading or capture, which may take minutes.

    Args:
        gpu: Name of a GPU (``xmem-fast gpus``).
        capacity: Bytes, or text such as ``11.5GiB``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job.
        torch_version: PyTorch version that will run it.
        confidence: Confidence of each bound of the interval.

    Raises:
        ConfigError: The GPU, the capacity, the settings, the version or the confidence are invalid.
    """
    require_confidence(confidence)
    if alloc_conf or torch_version:
        parse_alloc_conf(alloc_conf or "", torch_version or DEFAULT_TORCH_VERSION)
    return Question(asked_device(gpu, capacity), alloc_conf, torch_version, confidence)
