"""Captures on the phantom GPU: the machine that the script sees, and what it called there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from xmem.devices.gpus import Device, find_device
from xmem.errors import CaptureError
from xmem.phantom.environment import phantom_environment, prepare
from xmem.phantom.ledger import ProcessRecord, read_ledger
from xmem.records import dataclass

_FOLDER = "phantom"
# More than any job holds, and far below what overflows.
_UNLIMITED_BYTES = 1 << 50
_NAMED_CALLS = 6
# Launches that a stream takes before a launch waits for the GPU: about 1,000 for each stream, as users found
# (forums.developer.nvidia.com/t/68937). NVIDIA does not document it, so 1,024 is an assumption.
_MOST_WAITING = 1024


@dataclass(frozen=True)
class PhantomMachine:
    """What a script sees in phantom mode, and how it is run there.

    Attributes:
        device: The GPU.
        count: Number of GPUs.
        driver_version: Driver version as ``cudaDriverGetVersion`` returns it; at least the CUDA of the
            script's torch.
        strict_capacity: Whether memory runs out where the GPU's does. Otherwise the script gets what it asks
            for, though it is told the GPU's size, so that the peak is known even if it does not fit.
        keep_init: Whether weights are initialized on the host, which takes time and memory there.
        values: What reads of GPU memory give, by ``FILE:LINE`` of the script.
        known_elements: Tensors of up to this many elements keep values that follow from what the host wrote;
            0 keeps none.
        imbalance: Tokens that experts of a rank get, over their share of what an unknown router sends.
        cudnn_library: The ``libcudnn.so.9`` that plans convolutions, for the CUDA of the script's
            environment; None for that environment's own.
        snapshot: Where the allocator's own snapshot goes, for ``xmem-fast replay`` and PyTorch's viewer.
        launches: Whether every kernel and library call is written down, for ``xmem-fast occupancy``.
        behind: Whether the GPU is as far behind the script as it can be. Otherwise it is done with everything
            as soon as that is issued.
        compile_cache: Folder that keeps what ``torch.compile`` and Triton compile, for the next capture; None
            to compile everything again.
    """

    device: Device = field(default_factory=lambda: find_device("rtx-3060"))
    count: int = 1
    driver_version: int = 13000
    strict_capacity: bool = False
    keep_init: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    known_elements: int = 1 << 20
    imbalance: float = 1.0
    cudnn_library: Path | None = None
    snapshot: Path | None = None
    launches: bool = False
    behind: bool = False
    compile_cache: Path | None = None

    @property
    def has_compiled(self) -> bool:
        """Whether earlier captures left in the cache what they compiled."""
        return self.compile_cache is not None and (self.compile_cache / "inductor" / "fxgraph").is_dir()

    def switch_on(self, workspace: Path, environment: Mapping[str, str]) -> dict[str, str]:
        """Describe the machine in a folder of ``workspace``; returns the environment of its processes.

        Raises:
            CaptureError: The folder for compiled code cannot be made.
        """
        if self.compile_cache is not None:
            try:
                self.compile_cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CaptureError(
                    f"cannot make the folder {self.compile_cache} for compiled code ({error.strerror}); "
                    "choose another one"
                ) from error
        folder = workspace / _FOLDER
        folder.mkdir()
        limit = None if self.strict_capacity else _UNLIMITED_BYTES
        prepare(
            folder,
            [self.device] * self.count,
            driver_version=self.driver_version,
            limit_bytes=limit,
            cudnn_library=self.cudnn_library,
            most_waiting=_MOST_WAITING if self.behind else 0,
        )
        return phantom_environment(folder, environment, self.compile_cache)


def read_processes(workspace: Path) -> tuple[ProcessRecord, ...]:
    """Return what the processes of a capture did on the phantom GPU, without those that did not use it."""
    return tuple(process for process in read_ledger(workspace / _FOLDER / "ledger") if process.calls)


def last_calls(workspace: Path, process: int | None = None) -> str:
    """Say, for a command that failed, which CUDA call a process made last and which were refused, as the rest
    of a sentence; empty if it made none. Without a number it is the process that came to the GPU last."""
    record = _record_of(workspace, process)
    if record is None:
        return ""
    refused = _refused(record)
    return f"; its last CUDA call was {record.last_call}" + (f", and {refused}" if refused else "")


def refused_calls(workspace: Path, process: int | None = None) -> str:
    """Say what a process called that the phantom GPU does not support, as the rest of a sentence."""
    record = _record_of(workspace, process)
    refused = "" if record is None else _refused(record)
    return f"; {refused}" if refused else ""


def _record_of(workspace: Path, process: int | None) -> ProcessRecord | None:
    if not (workspace / _FOLDER).exists():
        return None
    with contextlib.suppress(CaptureError, OSError):
        for record in reversed(read_processes(workspace)):
            if process in (None, record.process):
                return record
    return None


def _refused(record: ProcessRecord) -> str:
    refused = sorted(record.calls_of("refused"))
    named = ", ".join(refused[:_NAMED_CALLS]) + (", ..." if len(refused) > _NAMED_CALLS else "")
    return f"the phantom GPU refused {named}" if refused else ""
