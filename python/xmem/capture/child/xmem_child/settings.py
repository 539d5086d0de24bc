"""What the parent tells the captured process, and what the process tells the parent.

Both go through a private folder (``workspace``): the parent creates it beside the output and removes it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """The described GPU that ``torch.cuda`` answers with."""

    name: str
    total_memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int


class Settings(NamedTuple):
    """The content of the environment variable ``XMEM_CAPTURE``.

    Attributes:
        workspace: The private folder.
        mode: ``real`` (on the CPU) or ``phantom`` (on the phantom GPU).
        iterations: To record.
        stacks: Whether every Python frame is recorded.
        gzip: Whether the trace is compressed.
        snapshot: Whether the allocator's snapshot is kept (phantom).
        keep_init: Whether weights are initialized (phantom).
        values: By source line, what reads of GPU memory give there (phantom).
        gpu: What ``torch.cuda`` describes (real).
    """

    workspace: Path
    mode: str
    iterations: int
    stacks: bool
    gzip: bool
    snapshot: bool
    keep_init: bool
    values: dict[str, float]
    xmem_version: str
    gpu: Gpu

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the JSON that ``xmem.capture`` wrote."""
        values: dict[str, Any] = json.loads(os.environ["XMEM_CAPTURE"])
        gpu = values.pop("gpu")
        gpu["capability"] = tuple(gpu["capability"])
        values["workspace"] = Path(values["workspace"])
        return cls(gpu=Gpu(**gpu), **values)

    @property
    def raw_trace(self) -> Path:
        """What the profiler wrote."""
        return self.workspace / "raw.json"

    @property
    def trace(self) -> Path:
        """The completed trace, complete once the status says so."""
        return self.workspace / ("trace.json.gz" if self.gzip else "trace.json")

    @property
    def claim(self) -> Path:
        """Exists once a process has completed an optimizer step: that process is the captured one."""
        return self.workspace / "claim"

    @property
    def allocator_snapshot(self) -> Path:
        """What ``torch.cuda.memory._snapshot`` returned, as ``_dump_snapshot`` writes it."""
        return self.workspace / "snapshot.pickle"

    def peer(self, rank: int) -> Path:
        """What a rank that is not the captured one measured."""
        return self.workspace / f"rank.{rank}.json"

    def take_claim(self) -> bool:
        """Make this process the captured one; False when another was first."""
        try:
            os.close(os.open(self.claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            return False
        return True

    def note_torch(self, version: str) -> None:
        """Tell the parent that some process imported torch."""
        # The capture may be over and its folder gone, if this process outlived it.
        with contextlib.suppress(OSError):
            (self.workspace / "torch").write_text(version)

    def report(self, **status: object) -> None:
        """Publish the outcome atomically; of several processes the last one counts."""
        partial = self.workspace / f"status.{os.getpid()}"
        # Nobody waits for it any more, or the disk is full: the parent then sees no status.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(status))
            partial.replace(self.workspace / "status.json")
