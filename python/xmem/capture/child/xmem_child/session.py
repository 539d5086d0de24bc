"""One captured process: when recording begins, what counts as an iteration, and how the script is stopped."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import threading
import time
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from .allocator_history import Requests
from .allocator_record import AllocatorRecord, allocator_settings
from .device_memory import running, usage
from .profiler import Profiler
from .run_notes import RunNotes
from .settings import Settings
from .spans import now_ns
from .trace_writer import MemoryChange, ProfilerFile, SeenMemory
from .unseen_memory import unseen_memory
from .values import Values

# An optimizer may step more often than another, or skip steps while the loss scale settles: this often, at
# most.
_PATIENCE = 8
_STOPS_BEFORE_EXIT = 3
# Ranks of one job make their steps at about the same pace: how long the captured one waits for the others.
_PEERS_S = 120.0


class State(Enum):
    """What this process is doing."""

    IDLE = "idle"
    RECORDING = "recording"
    DONE = "done"  # the trace is written, the script is being unwound
    BYSTANDER = "bystander"  # another process is the captured one
    PEER = "peer"  # another rank is; this one counts its steps and says what its allocator held


class Session(RunNotes):
    """Decides for its process; redirection, modules and optimizers report to it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        # Set for a run on the phantom GPU.
        self.allocator: AllocatorRecord | None = None
        self.values: Values | None = None
        self.state = State.IDLE
        # The policies for CPU traces look at shapes. Recording them keeps weak references to all arguments,
        # with which torch refuses to swap the tensors of parameters (DTensors that move to the device).
        self._profiler = Profiler(settings.stacks, shapes=settings.mode == "real")
        self._process = os.getpid()
        self._owner = False
        self._requests: list[Requests] = []  # of each device, once the recording has ended
        self._stops = 0
        atexit.register(self.thread_ends)
        os.register_at_fork(after_in_child=self._in_fork)

    # What the others report.

    def request_device(self) -> None:
        """The script asked for the GPU."""
        usage.requests += 1
        self.names.only_device = True
        self._ensure_recording()

    def input_arrived(self, tensor: torch.Tensor, time_ns: int, line: tuple[str, int] | None) -> None:
        """A tensor that is no part of a model was copied to the GPU."""
        self.note_training(time_ns)
        self.names.add("input", f"{line[0]}:{line[1]}" if line else "input", tensor)

    def root_called(self, module: torch.nn.Module, name: str) -> None:
        """A module is called from outside any other."""
        self._ensure_recording()
        if self.state is State.RECORDING:
            self._yield_to_owner()
            self.note_training(now_ns())
            self.names.add_root(module, name)
            self.script_settings.root_called(module)

    def optimizer_built(self, _optimizer: Optimizer) -> None:
        """An optimizer is being constructed; some allocate their state there."""
        self._ensure_recording()

    def before_step(self, optimizer: Optimizer) -> None:
        """See ``optimizers.StepObserver``."""
        if self.state is State.RECORDING:
            self.names.before_step(optimizer)

    def after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        """See ``optimizers.StepObserver``."""
        if self.state is State.DONE:
            self._unwind()
        if self.state is State.IDLE and self.allocator is not None:
            self.fail("the script never asked for a GPU; capture it with --mode real")
        if self.state is State.RECORDING and not self._owner:
            if self.allocator is None:
                self._require_one_thread()
            self._claim()
        if self.state is State.PEER:
            self.count_step(optimizer, skipped)
            if self._is_complete():
                self._report_as_peer()
                self._unwind()
        if self.state is not State.RECORDING:
            return
        if not skipped:
            self.names.after_step(optimizer)
        self.count_step(optimizer, skipped)
        if self._is_complete():
            self._finish()
            self._unwind()

    def thread_ends(self) -> None:
        """The calling thread ends; a script that trained too little leaves the trace of what it did."""
        if self.state is State.PEER and self.steps and threading.current_thread() is threading.main_thread():
            self._report_as_peer()
        if self.state is not State.RECORDING or threading.get_native_id() != self.thread:
            return
        if self._owner:
            self._finish()
        else:
            self._abandon()

    def follow_thread(self) -> None:
        """The calling thread calls torch."""
        self._profiler.follow_thread()

    def align(self, name: str, note: str) -> None:
        """Count one place where the CPU was made to allocate as CUDA would."""
        if self.state is State.RECORDING:
            super().align(name, note)

    def fail(self, message: str) -> None:
        """Give up for good: the parent ends the command and says why."""
        self.settings.report(state="failed", message=message)
        self.state = State.DONE
        self._unwind()

    # Recording.

    def _ensure_recording(self) -> None:
        if self.state is not State.IDLE or running.on_device:
            return
        if self.allocator is not None and not torch.cuda.is_initialized():
            return  # nothing on the GPU yet; initializing it here would keep the script from forking
        self.state = State.RECORDING
        self.thread = threading.get_native_id()
        # What lived before the recording and ends during it is no concern of the script's.
        warnings.filterwarnings("ignore", message="Memory block of unknown size was allocated before")
        # Threads share one recording, on purpose.
        warnings.filterwarnings("ignore", message="ProfilerStateBase already has a registered callback")
        # The first optimizer would import it, and its tensors are not the script's.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")
        if self.allocator is not None:
            if _rank() > 0:
                self.state = State.PEER
                return
            self.allocator.start()
        self._profiler.start()
        self.spans.active = True

    def _require_one_thread(self) -> None:
        if threading.get_native_id() != self.thread:
            self.fail(
                "the script trains in another thread than the one that first used the GPU, and the profiler "
                "follows one; capture a script that builds its model and trains in the same thread"
            )

    def _claim(self) -> None:
        may_claim = self.allocator is None or _rank() == 0
        if may_claim and self.settings.take_claim():
            self._owner = True
        else:
            self._abandon()

    def _yield_to_owner(self) -> None:
        """Stop recording in a process that only computes beside the captured one."""
        if not self._owner and self.settings.claim.exists():
            self._abandon()

    def _abandon(self) -> None:
        self.state = State.PEER if self.allocator is not None and _rank() > 0 else State.BYSTANDER
        self.spans.active = False
        if threading.get_native_id() == self.thread:
            self._profiler.stop()

    def _in_fork(self) -> None:
        # A fork of a recording process is a DataLoader worker or the like. The profiler cannot be stopped in
        # it.
        if self.state is State.RECORDING:
            self.state = State.BYSTANDER
            self.spans.active = False
            torch.autograd._enable_record_function(False)
        self._process = os.getpid()

    # The end.

    def _is_complete(self) -> bool:
        enough = self.settings.iterations
        if max(len(steps.ends_ns) for steps in self.steps) >= _PATIENCE * enough:
            return True
        return all(len(steps.ends_ns) >= enough and steps.real for steps in self.steps)

    def _finish(self) -> None:
        end_ns = now_ns()
        self.state = State.DONE
        self.spans.finish()
        try:
            self._profiler.stop()
            if self.allocator is not None:
                self._requests = self.allocator.requests()
            metadata = self._write(end_ns)
        except (OSError, RuntimeError) as error:
            message = f"the trace could not be written ({error}); free disk space or choose another output"
            self.settings.report(state="failed", message=message)
            return
        self.settings.report(
            state="complete",
            iterations=metadata["iterations"],
            complete=self._is_complete(),
            metadata={key: value for key, value in metadata.items() if key not in ("tensors", "lines")},
        )

    def _write(self, end_ns: int) -> dict[str, Any]:
        raw = self.settings.raw_trace
        self._profiler.export(raw)
        file = ProfilerFile(raw)
        iterations = self.iteration_spans(end_ns)
        # Without a single request for the GPU all tensors stand for device memory.
        recorded = (span for span in self.spans.spans if usage.requests or span[0] != "xmem_host")
        metadata = self._metadata(len(iterations), file.base_ns)
        memory = self._unseen_memory(file)
        file.complete(self.settings.trace, metadata, [*iterations, *recorded], self._process, memory)
        raw.unlink()
        return metadata

    def _unseen_memory(self, file: ProfilerFile) -> list[MemoryChange]:
        """What the allocators say that the profiler did not see."""
        seen: dict[int, list[SeenMemory]] = {}
        for event in file.device_memory() if self._requests else ():
            seen.setdefault(event.device_index, []).append(event)
        return [
            change
            for requests in self._requests
            for change in unseen_memory(
                requests, seen.get(requests.device, []), self.spans.spans, file.base_ns
            )
        ]

    def _report_as_peer(self) -> None:
        self.state = State.DONE
        assert self.allocator is not None
        row = {"rank": _rank(), "process": self._process, "devices": self.allocator.peaks()}
        path = self.settings.peer(_rank())
        partial = path.with_suffix(".partial")
        # The captured rank may have given up on this one.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(row))
            partial.replace(path)

    def _peers(self) -> list[dict[str, Any]]:
        """What the other ranks of the job measured; those that take too long are left out."""
        others = [rank for rank in range(_world_size()) if rank != _rank()]
        until = time.monotonic() + _PEERS_S
        while time.monotonic() < until:
            if all(self.settings.peer(rank).exists() for rank in others):
                break
            time.sleep(0.05)
        found = [path for path in map(self.settings.peer, others) if path.exists()]
        if len(found) < len(others):
            self.assume(f"{len(others) - len(found)} of {len(others) + 1} ranks did not report their memory")
        return [json.loads(path.read_text()) for path in found]

    def _phantom_metadata(self) -> dict[str, Any]:
        assert self.allocator is not None
        peaks = self.allocator.peaks()
        own = {"rank": _rank(), "process": self._process, "devices": peaks}
        if self.settings.snapshot:
            self.allocator.dump(self.settings.allocator_snapshot)
        return {
            "alloc_conf": allocator_settings(),
            "ranks": [own, *(self._peers() if _world_size() > 1 else [])],
            "requests": [requests.columns() for requests in self._requests],
            "cudnn": _cudnn_planner(),
            "values": [] if self.values is None else self.values.rows(),
        }

    def _metadata(self, iterations: int, base_ns: int) -> dict[str, Any]:
        if iterations < self.settings.iterations:
            self.assume(
                f"the script made {iterations} of the {self.settings.iterations} iterations asked for"
            )
        notes = self.metadata(self.settings.mode, self.settings.xmem_version, iterations, base_ns)
        return notes if self.allocator is None else notes | {"phantom": self._phantom_metadata()}

    def _unwind(self) -> None:
        """Leave the script; one that catches everything is left again at its next step, then for good."""
        self._stops += 1
        if self._stops >= _STOPS_BEFORE_EXIT:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        # Prints nothing wherever it ends: in the script, a thread of it, or a process of multiprocessing.
        raise SystemExit(0)


def _cudnn_planner() -> dict[str, str]:
    """Who planned the convolutions, as the phantom noted it; empty if there were none."""
    note = Path(os.environ["XMEM_PHANTOM"]) / "cudnn"
    if not note.exists():
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in note.read_text().splitlines())}


def _rank() -> int:
    """The rank of this process in its distributed job, 0 outside of one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1
