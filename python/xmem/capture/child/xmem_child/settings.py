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


class Extent(NamedTuple):
    """How far to record, as the parent says it.

    Attributes:
        iterations: The minimum; the exact number if nothing else is asked for.
        until_steady: Go on until two iterations in a row bring no new peak.
        with_eval: Go on until the first evaluation that follows a training step is over.
        until_end: Go on until the script ends.
        calls: Number of calls of outermost modules, for scripts that do not train; 0: until the script ends.
        longest_batch: Make batches of the longest items of a data set.
    """

    iterations: int
    until_steady: bool = False
    with_eval: bool = False
    until_end: bool = False
    calls: int = 0
    longest_batch: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether all ranks of a job know by themselves when to stop."""
        return not (self.until_steady or self.with_eval or self.until_end)


class World(NamedTuple):
    """A distributed job of which only some ranks run.

    Attributes:
        size: Number of ranks that the script believes in.
        ranks: Those that run.
    """

    size: int
    ranks: tuple[int, ...]


class Settings(NamedTuple):
    """The content of the environment variable ``XMEM_CAPTURE``.

    Attributes:
        workspace: The private folder.
        mode: ``real`` (on the CPU), ``fake`` (on the CPU, which computes nothing) or ``phantom`` (on the
            phantom GPU).
        extent: How far to record.
        rank: The rank of a distributed job whose memory is traced.
        world: The job, where not all of its ranks run (phantom).
        stacks: Whether every Python frame is recorded.
        gzip: Whether the trace is compressed.
        snapshot: Whether the allocator's snapshot is kept (phantom).
        launches: Whether every launch is written down (phantom).
        behind: Whether the GPU is behind the script (phantom).
        has_compiled: Whether earlier captures left compiled code (phantom).
        keep_init: Whether weights are initialized (phantom, fake).
        values: The value that reads of GPU memory give, by source line (phantom, fake).
        known_elements: Tensors with more elements have no values (phantom, fake).
        imbalance: Tokens that experts of a rank get, over their share (phantom).
        gpu: What ``torch.cuda`` describes (real, fake).
    """

    workspace: Path
    mode: str
    extent: Extent
    rank: int
    world: World | None
    stacks: bool
    gzip: bool
    snapshot: bool
    launches: bool
    behind: bool
    has_compiled: bool
    keep_init: bool
    values: dict[str, float]
    known_elements: int
    imbalance: float
    xmem_version: str
    gpu: Gpu

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the JSON that ``xmem.capture`` wrote."""
        values: dict[str, Any] = json.loads(os.environ["XMEM_CAPTURE"])
        gpu = values.pop("gpu")
        gpu["capability"] = tuple(gpu["capability"])
        values["workspace"] = Path(values["workspace"])
        values["extent"] = Extent(**values["extent"])
        world = values["world"]
        values["world"] = None if world is None else World(world["size"], tuple(world["ranks"]))
        return cls(gpu=Gpu(**gpu), **values)

    def raw_trace(self, process: int) -> Path:
        """The file that the profiler wrote."""
        return self.workspace / f"raw.{process}.json"

    def trace(self, process: int) -> Path:
        """Return the file for the finished trace of a process, complete once its status says so."""
        return self.workspace / f"trace.{process}.json{'.gz' if self.gzip else ''}"

    @property
    def claim(self) -> Path:
        """A file that exists once a process has completed an optimizer step: that process is the captured
        one. It holds its number."""
        return self.workspace / "claim"

    @property
    def finish(self) -> Path:
        """A file that exists once the run should end: after the number of iterations in it, or at once if
        empty."""
        return self.workspace / "finish"

    @property
    def allocator_snapshot(self) -> Path:
        """The file for the result of ``torch.cuda.memory._snapshot``, as ``_dump_snapshot`` writes it."""
        return self.workspace / "snapshot.pickle"

    def peer(self, process: int) -> Path:
        """Return the file for the measurements of a process that is not the captured one."""
        return self.workspace / f"peer.{process}.json"

    def peers(self) -> list[dict[str, Any]]:
        """Return what all of those processes measured so far."""
        return [json.loads(path.read_text()) for path in sorted(self.workspace.glob("peer.*.json"))]

    def take_claim(self) -> bool:
        """Make this process the captured one; return False if another was first."""
        try:
            file = os.open(self.claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return not self.is_claimed_by_another()
        except OSError:
            return False
        with contextlib.suppress(OSError):  # of a full disk
            os.write(file, str(os.getpid()).encode())
        os.close(file)
        return True

    def is_claimed_by_another(self) -> bool:
        """Return whether another process is the captured one.

        A program that has taken this process over with ``exec`` finds its own number in the claim.
        """
        try:
            return self.claim.read_text() != str(os.getpid())
        except OSError:
            return False

    def note_torch(self, version: str) -> None:
        """Tell the parent that some process imported torch."""
        # The capture may be over and its folder gone, if this process outlived it.
        with contextlib.suppress(OSError):
            (self.workspace / "torch").write_text(version)

    def report(self, **status: object) -> None:
        """Publish the outcome; of several processes the last one counts."""
        self._publish("status.json", status)

    def offer(self, **status: object) -> None:
        """Publish the outcome of a process that never trained: it counts if no other process trains."""
        self._publish(f"offer.{os.getpid()}.json", status)

    def report_peer(self, **measured: object) -> None:
        """Publish what a process that is not the captured one measured."""
        self._publish(self.peer(os.getpid()).name, measured)

    def want_ranks(self, ranks: set[int]) -> None:
        """Tell the parent that ranks which do not run have something to say that this process lacks."""
        with contextlib.suppress(OSError), (self.workspace / "wanted").open("a") as file:
            file.write("".join(f"{rank}\n" for rank in sorted(ranks)))

    def ask_to_finish(self, iterations: int) -> None:
        """Make the other processes of the job stop after this many iterations."""
        with contextlib.suppress(OSError):
            self.finish.write_text(str(iterations))

    def _publish(self, name: str, content: dict[str, Any]) -> None:
        """Write a file atomically."""
        partial = self.workspace / f"partial.{os.getpid()}"
        # Nobody is waiting for it any more, or the disk is full: the parent then sees nothing.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(content))
            partial.replace(self.workspace / name)
