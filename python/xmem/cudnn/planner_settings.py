"""Settings of a job that decide which plans cuDNN may take."""

from __future__ import annotations

from xmem.records import dataclass


@dataclass(frozen=True)
class PlannerSettings:
    """The job's settings in ``torch.backends.cudnn`` that decide which plans are tried.

    Attributes:
        allow_tf32: Whether single precision may use tensor cores.
        deterministic: Whether only engines that give the same result every time may run.
        benchmark: Whether all plans are timed at the first use.
    """

    allow_tf32: bool = True
    deterministic: bool = False
    benchmark: bool = False
