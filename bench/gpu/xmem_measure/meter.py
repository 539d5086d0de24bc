"""What is asked of a device while something runs on it, and how CUDA answers."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from xmem_measure.history import History, Mark

_MOST_ENTRIES = 20_000_000


@dataclass(frozen=True)
class Usage:
    """Bytes of the caching allocator: now, and at most since the last question."""

    allocated_bytes: int
    reserved_bytes: int
    max_allocated_bytes: int
    max_reserved_bytes: int


class Meter(Protocol):
    """One device of a process that will run one thing and end."""

    device: torch.device

    def open(self) -> None:
        """Create the context, and nothing else."""

    def watching(self) -> AbstractContextManager[Any]:
        """What runs inside is measured."""

    def limit(self, cap_bytes: int) -> None:
        """Give out no more than this."""

    def start_history(self) -> None:
        """Record the allocator; call it while the allocator is empty."""

    def history(self) -> History:
        """What was recorded."""

    def mark(self) -> Mark:
        """This moment in the history."""

    def usage(self) -> Usage:
        """Peaks since the last call; the device has finished what it was given."""

    def used_bytes(self) -> int:
        """What all processes use of the device, as the device says; -1 if it does not."""

    def statistics(self) -> dict[str, int]:
        """Counters of the allocator that a peak can depend on."""


class CudaMeter:
    """The first CUDA device, through PyTorch."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)

    def open(self) -> None:
        torch.cuda.init()
        torch.cuda.set_device(self.device)
        # The primary context comes with the first call that needs it.
        torch.cuda.synchronize(self.device)

    def watching(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def limit(self, cap_bytes: int) -> None:
        total = torch.cuda.get_device_properties(self.device).total_memory
        # A little more, so that rounding down does not cost a byte.
        torch.cuda.set_per_process_memory_fraction(min(1.0, (cap_bytes + 256) / total), self.device)

    def start_history(self) -> None:
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_ENTRIES)

    def history(self) -> History:
        self._finish()
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        return History.from_trace(entries, complete=len(entries) < _MOST_ENTRIES)

    def mark(self) -> Mark:
        statistics = torch.cuda.memory_stats(self.device)
        return Mark(statistics["allocation.all.allocated"], statistics["allocation.all.freed"])

    def usage(self) -> Usage:
        self._finish()
        usage = Usage(
            torch.cuda.memory_allocated(self.device),
            torch.cuda.memory_reserved(self.device),
            torch.cuda.max_memory_allocated(self.device),
            torch.cuda.max_memory_reserved(self.device),
        )
        torch.cuda.reset_peak_memory_stats(self.device)
        return usage

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def statistics(self) -> dict[str, int]:
        statistics = torch.cuda.memory_stats(self.device)
        return {name: statistics.get(name, 0) for name in ("num_alloc_retries", "num_ooms")}

    def _finish(self) -> None:
        torch.cuda.synchronize(self.device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a run ended because memory did: libraries say it in their own words."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "ALLOC_FAILED" in text)


def loaded_library(name: str, function: str) -> ctypes.CDLL:
    """The library in which this process finds a function: one that precedes all others, or a loaded file.

    Args:
        name: What the file's name begins with.
        function: One that it must have.

    Raises:
        OSError: No such library is loaded.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, function):
        return process
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - no regular file
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    for path in sorted(paths):
        if path.rpartition("/")[2].startswith(name) and hasattr(library := ctypes.CDLL(path), function):
            return library
    raise OSError(f"no loaded {name} with {function}")
