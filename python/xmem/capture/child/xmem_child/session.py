"""One captured process: when recording begins, what counts as an iteration, and how the script is stopped."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from .on_phantom.peers import rank_here, stands_for, wait_for_peers, world_size
from .records import failures, launches
from .records.allocator_history import Requests
from .records.allocator_record import AllocatorRecord, allocator_settings
from .records.card_record import card_of, cards, communicators
from .records.nccl_record import nccl_notes
from .records.profiler import Profiler
from .records.progress import Progress
from .records.recording_size import RecordingSize
from .records.run_notes import RunNotes
from .records.shortages import Shortages
from .records.trace_writer import MemoryChange, ProfilerFile, SeenMemory
from .records.unseen_memory import unseen_memory
from .settings import Settings
from .system import after_fork
from .values.known import KnownValues
from .watching.data_lengths import DataLengths
from .watching.device_memory import running, usage
from .watching.extent import Recording
from .watching.graph_warm_ups import GraphWarmUps
from .watching.spans import now_ns

if TYPE_CHECKING:
    from .absent import AbsentPeers

_STOPS_BEFORE_EXIT = 3


class State(Enum):
    """What this process is doing."""

    IDLE = "idle"
    RECORDING = "recording"
    DONE = "done"  # the trace is written, the script is being unwound
    BYSTANDER = "bystander"  # another process is captured
    PEER = "peer"  # likewise another rank: counts its iterations, reports what its allocator held


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from looking for garbage in cycles: the allocator's history becomes millions of objects,
    none of which are garbage, and Python would look through them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Session(RunNotes):
    """Decides for its process; redirection, modules and optimizers report to it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        # Set for a run on the phantom GPU.
        self.allocator: AllocatorRecord | None = None
        # Set for a run on the CPU.
        self.streams: Callable[[int, int], dict[str, list[int]]] | None = None
        # Set where nothing is computed.
        self.values: KnownValues | None = None
        # Set for a run on the phantom GPU: CUDA graphs need CUDA.
        self.graph_warm_ups: GraphWarmUps | None = None
        self.absent: AbsentPeers | None = None
        self.state = State.IDLE
        self.progress = Progress(settings.workspace)
        # The policies for CPU traces look at shapes. Recording them keeps weak references to all arguments,
        # with which torch refuses to swap the tensors of parameters (DTensors that move to the device).
        self._profiler = Profiler(settings.stacks, shapes=settings.mode != "phantom")
        self._size = RecordingSize()
        self._extent = Recording(
            settings.extent, self.iterations, self._peak_bytes, self.assume, self._warms_up_for_a_graph
        )
        self._lengths = DataLengths(settings.extent.longest_batch, self.assume)
        self._lengths.install()
        self._shortages = Shortages(self.spans.user_line)
        self._process = os.getpid()
        self._owner = False
        self._requests: list[Requests] = []  # of each device, once the recording has ended
        self._stops = 0
        self.progress.note("starting")
        atexit.register(self.process_ends)
        after_fork(self._in_fork)

    # What the others report.

    def request_device(self) -> None:
        """Note that the script asked for the GPU."""
        usage.requests += 1
        self.names.only_device = True
        self._ensure_recording()

    def input_arrived(self, tensor: torch.Tensor, time_ns: int, line: tuple[str, int] | None) -> None:
        """Note that a tensor outside any model was copied to the GPU."""
        self.note_training(time_ns)
        self.names.add("input", f"{line[0]}:{line[1]}" if line else "input", tensor)

    def root_called(self, module: torch.nn.Module, name: str) -> None:
        """Handle a call of a module from outside any other."""
        self._ensure_recording()
        self.progress.note(f"{self._iteration_now()}, in {name}")
        if self.state is State.RECORDING:
            self._yield_to_owner()
            self.note_training(now_ns())
            self.names.add_root(module, name)
            self.script_settings.root_called(module)
        self.iterations.call_begins()
        if self.values is not None:
            self.values.model_called()

    def root_left(self, module: torch.nn.Module) -> None:
        """Handle the end of its call; a module without weights, such as a loss, is part of its
        surroundings."""
        if self.state in _COUNTING and next(module.parameters(), None) is not None:
            self.iterations.call_ends()
            self.progress.note(f"{self._iteration_now()}, after a call of {type(module).__name__}")
            self._advance()

    def backward_ended(self) -> None:
        """Handle the end of an outermost backward pass."""
        if self.state in _COUNTING:
            self.iterations.count_backward()
            self.progress.note(f"{self._iteration_now()}, after its backward pass")
            self._advance()

    def optimizer_built(self, _optimizer: Optimizer) -> None:
        """Handle the construction of an optimizer, in which some allocate their state."""
        self.iterations.optimizers_built += 1
        self._ensure_recording()

    def before_step(self, optimizer: Optimizer) -> None:
        """See ``optimizers.StepObserver``."""
        self.progress.note(f"{self._iteration_now()}, in {type(optimizer).__name__}.step")
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
        if self.state not in _COUNTING:
            return
        if self.state is State.RECORDING and not skipped:
            self.names.after_step(optimizer)
        self.iterations.count_step(optimizer, skipped)
        if self.values is not None:
            self.values.stepped()
        if self.graph_warm_ups is not None:
            self.graph_warm_ups.stepped()
        self.progress.note(f"after {len(self.iterations.ends_ns())} iterations")
        self._advance()

    def graph_replayed(self) -> None:
        """Handle a replay of a CUDA graph of whole iterations."""
        if self.state in _COUNTING:
            self.progress.note(f"{self._iteration_now()}, after a replay of a CUDA graph")
            self._advance()

    def thread_ends(self) -> None:
        """Handle the end of the calling thread. On the CPU the profiler follows one thread, and the recording
        ends with it."""
        if self.allocator is None:
            self.process_ends()

    def process_ends(self) -> None:
        """Leave a trace of what a script did that trained too little or not at all."""
        if self.state is State.PEER:
            self._report_as_peer()
        if self.state is not State.RECORDING:
            return
        if self.allocator is None and threading.get_native_id() != self.thread:
            return  # the profiler cannot be stopped from here
        reason = self._never_trained() or self._shortages.gave_up(self.iterations.worked_ns())
        if reason is not None:
            self._abandon()  # a profiler that still runs when the interpreter ends crashes the process
            self.state = State.DONE
            self.settings.report(state="failed", message=reason)
        elif self._owner or self._takes_part():
            self._finish(script_ended=True)
        else:
            self._abandon()

    def _never_trained(self) -> str | None:
        """Say why a script that wanted to train did not, if the likely reason is values that the phantom GPU
        lacks."""
        wanted = self.iterations.kind == "call" and self.iterations.optimizers_built > 0
        lines = [] if self.values is None or not wanted else self.values.deciding_lines()
        if not lines or failures.noted():  # what was raised says more
            return None
        return (
            "the script built an optimizer and ended without a training step. It read values that are not "
            "known, because nothing is computed, and got zero or false, at "
            f"{', '.join(lines)}; if that is the cause, set them with --value {lines[0]}=NUMBER"
        )

    def follow_thread(self) -> None:
        """Follow the calling thread, which calls torch."""
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
        # Memory that is older than the recording and is freed during it does not concern the script.
        warnings.filterwarnings("ignore", message="Memory block of unknown size was allocated before")
        # Threads share one recording, on purpose.
        warnings.filterwarnings("ignore", message="ProfilerStateBase already has a registered callback")
        # The first optimizer would import it, and its tensors are not the script's.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")
        self.progress.note("setting up")
        if self._has_ranks and not stands_for(self.settings.rank):
            self.state = State.PEER
            return
        if self.allocator is not None:
            self.allocator.start()
            self._shortages.follow()
            if self.settings.launches:
                launches.start()
        self._profiler.start()
        self.spans.active = True
        self._size.begin()

    @property
    def _has_ranks(self) -> bool:
        """Whether processes may be ranks of a job of which one is traced."""
        return self.allocator is not None or self.settings.world is not None

    def _iteration_now(self) -> str:
        return f"iteration {len(self.iterations.ends_ns()) + 1}"

    def _require_one_thread(self) -> None:
        if threading.get_native_id() != self.thread:
            self.fail(
                "the script trains in a different thread from the one that first used the GPU, and the "
                "profiler follows only one thread; capture a script that builds its model and trains in the "
                "same thread"
            )

    def _takes_part(self) -> bool:
        """Return whether a process that made no step may still be the one to capture."""
        if self.allocator is not None:
            return stands_for(self.settings.rank) and any(self._peak_bytes())
        return self.iterations.calls > 0

    def _claim(self) -> None:
        may_claim = not self._has_ranks or stands_for(self.settings.rank)
        if may_claim and self.settings.take_claim():
            self._owner = True
        else:
            self._abandon()

    def _yield_to_owner(self) -> None:
        """Stop recording in a process that only computes beside the captured one."""
        if not self._owner and self.settings.is_claimed_by_another():
            self._abandon()

    def _abandon(self) -> None:
        self.state = State.PEER if self._has_ranks else State.BYSTANDER
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
        self.progress.in_fork()
        # A child of multiprocessing that was forked leaves without atexit's functions.
        if (processes := sys.modules.get("multiprocessing.util")) is not None:
            processes.Finalize(None, self.process_ends, exitpriority=-100)

    def _peak_bytes(self) -> tuple[int, ...]:
        """Return the most that the allocators of all devices held so far, reserved and allocated."""
        if self.allocator is None or not torch.cuda.is_initialized():
            return ()
        return tuple(
            row[name]
            for row in self.allocator.peaks()
            for name in ("peak_reserved_bytes", "peak_allocated_bytes")
        )

    def _warms_up_for_a_graph(self, replays: int) -> bool:
        return self.graph_warm_ups is not None and self.graph_warm_ups.lead_to_a_graph(replays)

    # The end.

    def _advance(self) -> None:
        """Stop the script if enough was seen."""
        if self.state is State.PEER and self._is_over_for_peers():
            self._report_as_peer()
            self._unwind()
        if self.state is not State.RECORDING:
            return
        asked = self.settings.finish.exists()
        large = self.spans.active and self._size.is_large(len(self.spans.spans))
        if large and self.allocator is not None:
            self._end_operators()
            large = False
        if not (asked or large or self._extent.is_complete()):
            return
        if not self._owner:
            self._claim()
        if self.state is State.RECORDING:
            if asked:
                self.assume("the time limit was reached: what the script does later was not recorded")
            if large:
                self.assume(f"{_LARGE}; what the script does later was not recorded")
            self._finish(script_ended=False)
            self._unwind()

    def _end_operators(self) -> None:
        """Go on with the allocator's requests alone, which take little memory."""
        count = len(self.iterations.ends_ns())
        self.assume(f"{_LARGE}; the memory of later iterations is counted, but not named ({count} were)")
        self._end_profile()

    def _end_profile(self) -> None:
        if self.spans.active:
            self.spans.finish()
            self._profiler.stop()
            self._profiler.export(self.settings.raw_trace(self._process))

    def _is_over_for_peers(self) -> bool:
        """Return whether this rank should stop: all ranks of a job stop after the same number of iterations,
        or some would wait for others in vain."""
        if self.settings.extent.is_fixed:
            return self._extent.is_complete()
        try:
            after = self.settings.finish.read_text()
        except OSError:
            return False
        return not after or len(self.iterations.ends_ns()) >= int(after)

    @_without_collections()
    def _finish(self, *, script_ended: bool) -> None:
        end_ns = now_ns()
        self.state = State.DONE
        if not script_ended:
            self.settings.ask_to_finish(len(self.iterations.ends_ns()))
        try:
            self._end_profile()
            if self.allocator is not None:
                if self.settings.launches:
                    launches.stop()
                self._requests = self.allocator.requests()
            metadata = self._write(end_ns, script_ended)
        except (OSError, RuntimeError) as error:
            message = f"the trace could not be written ({error}); free disk space or choose another output"
            self.settings.report(state="failed", message=message)
            return
        publish = self.settings.report if self._owner else self.settings.offer
        publish(
            state="complete",
            trace=str(self.settings.trace(self._process)),
            iterations=metadata["iterations"],
            peak_bytes=max(self._peak_bytes(), default=0),
            complete=not script_ended,
            metadata={key: value for key, value in metadata.items() if key not in _NOT_PUBLISHED},
        )

    def _write(self, end_ns: int, script_ended: bool) -> dict[str, Any]:
        raw = self.settings.raw_trace(self._process)
        file = ProfilerFile(raw)
        iterations = self.iteration_spans(end_ns)
        # Without a single request for the GPU all tensors stand for device memory.
        recorded = (span for span in self.spans.spans if usage.requests or span[0] != "xmem_host")
        metadata = self._metadata(len(iterations), file.base_ns, script_ended)
        memory = self._unseen_memory(file)
        trace = self.settings.trace(self._process)
        file.complete(trace, metadata, [*iterations, *recorded], self._process, memory)
        raw.unlink()
        return metadata

    def _unseen_memory(self, file: ProfilerFile) -> list[MemoryChange]:
        """Return the memory changes that the allocators report and the profiler did not see."""
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
        self.settings.report_peer(**self._own_peaks())

    def _own_peaks(self) -> dict[str, Any]:
        """Return what the allocators of this process held; nothing on the CPU, where the trace tells."""
        peaks = [] if self.allocator is None else self.allocator.peaks()
        devices = [row | {"card": card_of(row["device"])} for row in peaks]
        place = [] if self.absent is None else self.absent.groups.places()
        return {"rank": rank_here(), "process": self._process, "devices": devices, "place": place}

    def _phantom_metadata(self, read: list[dict[str, Any]]) -> dict[str, Any]:
        from .on_phantom import phantom_distributed

        assert self.allocator is not None
        own = self._own_peaks()
        if self.settings.snapshot:
            self.allocator.dump(self.settings.allocator_snapshot)
        missing = wait_for_peers(self.settings)
        if missing:
            self.assume(f"{missing} of {world_size()} ranks did not report their memory")
        return {
            **self._world(),
            "alloc_conf": allocator_settings(),
            "behind": self.settings.behind,
            "unwaited_bytes": phantom_distributed.unwaited.size_bytes,
            "ranks": [own, *self.settings.peers()],
            "cards": cards(),
            "requests": [requests.columns() for requests in self._requests],
            "cudnn": _cudnn_planner(),
            "values": read,
        }

    def _cpu_metadata(self, base_ns: int) -> dict[str, Any]:
        if usage.transforms:
            self.doubt("transforms")
        streams = {} if self.streams is None else self.streams(self.thread, base_ns)
        notes = {"values": []} if self.values is None else self.values.notes()
        return {**self._world(), "streams": streams, **notes}

    def _world(self) -> dict[str, Any]:
        """Return what is known of the job where not all of its ranks run."""
        if self.absent is None:
            return {}
        return {
            "world": {
                "size": self.absent.size,
                "ranks": sorted(self.absent.running),
                "pipeline": list(self.absent.groups.pipeline),
                "ends": self.absent.groups.ends,
            }
        }

    def _metadata(self, iterations: int, base_ns: int, script_ended: bool) -> dict[str, Any]:
        wanted = self.settings.extent.iterations
        if script_ended and self.iterations.kind != "call" and iterations < wanted:
            self.assume(f"the script ran only {iterations} of the {wanted} requested iterations")
        if not script_ended:
            self.assume(self._extent.unseen())
            for text in self._lengths.unseen():
                self.assume(text)
        if (shortages := self._shortages.went_on(self.iterations.worked_ns())) is not None:
            self.assume(shortages)
        if self.values is not None:
            self.values.ended()
        # First, for what it assumes of ranks that say nothing.
        ran = (
            self._cpu_metadata(base_ns)
            if self.allocator is None
            else {
                "phantom": self._phantom_metadata([] if self.values is None else self.values.rows()),
                "nccl": nccl_notes(communicators()),
            }
        )
        notes = self.metadata(self.settings.mode, self.settings.xmem_version, iterations, base_ns)
        notes["script_ended"] = script_ended
        if self.settings.launches and self.allocator is not None:
            notes["launches"] = launches.columns(base_ns)
        return notes | ran

    def _unwind(self) -> None:
        """Leave the script; one that catches everything is left again at its next step, then for good."""
        self._stops += 1
        if self._stops >= _STOPS_BEFORE_EXIT:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        # Prints nothing wherever it ends: in the script, a thread of it, or a process of multiprocessing.
        raise SystemExit(0)


_LARGE = "the recording of operators ended early, because it would take most of the host's memory"
_NOT_PUBLISHED = ("tensors", "lines", "launches", "streams", "attention")  # as long as the run
_COUNTING = (State.RECORDING, State.PEER)


def _cudnn_planner() -> dict[str, str]:
    """Return which cuDNN planned the convolutions, as the phantom noted it; empty if there were none."""
    note = Path(os.environ["XMEM_PHANTOM"]) / "cudnn"
    if not note.exists():
        return {}
    return {key: value for key, _, value in (line.partition(" ") for line in note.read_text().splitlines())}
