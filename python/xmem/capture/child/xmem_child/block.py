"""A block of the running process, recorded on request; afterwards torch is as it was.

On the CPU its tensors stand for GPU memory, and operators allocate as CUDA's do meanwhile (``alignments``);
they compute nothing if that is asked for (``fake``).
On a GPU nothing is changed. Memory whose allocation is not seen is noted: on the CPU the memory that calls
into torch are given, on a GPU all blocks of the allocator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import Optimizer

from .function_mode import follow_module_moves
from .on_cpu.alignments import Alignments
from .on_cpu.fake.values import FakeValues
from .on_phantom.observe import ScriptWatch
from .patches import Patches
from .records import profiler
from .records.allocator_record import allocator_settings
from .records.run_notes import RunNotes
from .records.trace_writer import CUDA, MemoryChange, ProfilerFile
from .system import after_fork
from .watching.device_memory import storage_of, tensors_in
from .watching.modules import ModuleCalls
from .watching.optimizers import StepHooks
from .watching.spans import Span, now_ns

_KNOWN_ELEMENTS = 1 << 20  # of a tensor that is computed where nothing else is


class SeenMemory(NamedTuple):
    """Memory that a call was given, with the time on the process's clock and the line that made the call."""

    time_ns: int
    size_bytes: int
    dtype: str
    shape: list[int]
    line: str


class RecordedBlock(NamedTuple):
    """A finished recording.

    Attributes:
        file: What the profiler wrote.
        metadata: The ``xmem`` object of the trace.
        spans: Spans of iterations, modules and lines.
        begin_ns: When the recording began, on the clock of the trace.
        seen: On the CPU: by address, the first memory there that a call was given, on the clock of the trace.
        ends_ns: On the CPU: by address, when the first named or seen memory there was freed.
        on_gpu: Whether it was measured.
        existing: On a GPU: what its allocators held at the beginning.
        totals: On a GPU: allocated and reserved bytes by device at the beginning.
        process: Id of the process.
        thread: Native id of the recorded thread.
    """

    file: ProfilerFile
    metadata: dict[str, Any]
    spans: list[Span]
    begin_ns: int
    seen: dict[int, SeenMemory]
    ends_ns: dict[int, int]
    on_gpu: bool
    existing: list[MemoryChange]
    totals: dict[int, tuple[int, int]]
    process: int
    thread: int


class BlockRecording(RunNotes):
    """One recording of the calling thread."""

    def __init__(self, *, on_gpu: bool, xmem_version: str, fake: bool = False) -> None:
        super().__init__()
        self._fake = fake
        self._values: FakeValues | None = None
        self.names.only_device = on_gpu
        self._on_gpu = on_gpu
        self._xmem_version = xmem_version
        self._profiler = profiler.Profiler(stacks=False, shapes=not on_gpu)
        self._patches = Patches()
        self._calls = ModuleCalls(self.spans, self)
        self._within: torch.nn.Module | None = None
        self._begin_ns = self._end_ns = 0
        self._seen: dict[int, SeenMemory] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._ends_ns: dict[int, int] = {}
        self._existing: list[MemoryChange] = []
        self._totals: dict[int, tuple[int, int]] = {}

    def start(self, within: object = None) -> None:
        """Begin; ``within`` may be the module whose method the block is.

        Raises:
            RuntimeError: Another profiler is running.
        """
        if torch.autograd._profiler_enabled():
            raise RuntimeError("torch's profiler is on")
        # The first optimizer would import it, and its tensors are not the block's.
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")
        self.thread = threading.get_native_id()
        try:
            self._install()
            if self._on_gpu:
                self._existing = list(_allocations())
                self._totals = {
                    device: (torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))
                    for device in range(torch.cuda.device_count())
                }
            self._begin_ns = now_ns()
            profiler.keep_quiet(self._patches)
            self._profiler.start()
            profiler.keep_quiet(self._patches)
            self._patches.on_undo(self._profiler.stop)
            self.spans.active = True
            _follow_forks(self)
            if isinstance(within, torch.nn.Module):
                self._calls.enter(within, ())
                self._within = within
        except BaseException:
            self._patches.undo()
            raise

    def stop(self) -> None:
        """End the recording, and undo every change to torch."""
        if self._within is not None:
            self._calls.leave(self._within, (), None)
        self._end_ns = now_ns()
        self.names.name_gradients()
        self.spans.finish()
        _follow_forks(None)
        self._patches.undo()

    def in_fork(self) -> None:
        """Abandon the recording in a fork, such as a DataLoader worker; the profiler cannot be stopped
        there."""
        self.spans.active = False
        torch.autograd._enable_record_function(False)

    def finish(self, raw: Path) -> RecordedBlock:
        """Write what the profiler recorded to ``raw``, and return what must be added to it.

        Raises:
            OSError: The profiler could not write.
        """
        quiet = Patches()
        profiler.keep_quiet(quiet)
        self._profiler.export(raw)
        quiet.undo()
        file = ProfilerFile(raw)
        if self.iterations.steps:
            iterations = self.iteration_spans(self._end_ns)
        else:
            iterations = [("xmem_iteration", "iteration 0", self.thread, self._begin_ns, self._end_ns)]
        mode = "gpu" if self._on_gpu else "real" if self._values is None else "fake"
        metadata = self.metadata(mode, self._xmem_version, len(iterations), file.base_ns)
        if self._values is not None:
            metadata["values"] = self._values.rows()
        if self._on_gpu:
            metadata["measured"] = {"alloc_conf": allocator_settings()}
        return RecordedBlock(
            file=file,
            metadata=metadata,
            spans=[*iterations, *self.spans.spans],
            begin_ns=self._begin_ns - file.base_ns,
            seen={a: seen._replace(time_ns=seen.time_ns - file.base_ns) for a, seen in self._seen.items()},
            ends_ns={address: end_ns - file.base_ns for address, end_ns in self._ends_ns.items()},
            on_gpu=self._on_gpu,
            existing=self._existing,
            totals=self._totals,
            process=os.getpid(),
            thread=self.thread,
        )

    # What the others report.

    def follow_thread(self) -> None:
        """Do nothing: other threads are not recorded."""

    def input_arrived(self, tensor: torch.Tensor, time_ns: int, line: tuple[str, int] | None) -> None:
        """Note that a tensor outside any model was copied to the GPU."""
        self.note_training(time_ns)
        self.names.add("input", f"{line[0]}:{line[1]}" if line else "input", tensor)

    def root_called(self, module: torch.nn.Module, name: str) -> None:
        """Note a call of a module from outside any other."""
        self.note_training(now_ns())
        self.names.add_root(module, name)
        self.names.name_gradients()
        self.script_settings.root_called(module)

    def root_left(self, _module: torch.nn.Module) -> None:
        """See ``modules.RootObserver``."""

    def optimizer_built(self, _optimizer: Optimizer) -> None:
        """See ``optimizers.StepObserver``."""

    def before_step(self, optimizer: Optimizer) -> None:
        """See ``optimizers.StepObserver``; its state may be older than the recording."""
        self.names.before_step(optimizer)
        self.names.after_step(optimizer)

    def after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        """See ``optimizers.StepObserver``."""
        self.names.after_step(optimizer)
        self.iterations.count_step(optimizer, skipped)

    def saw(self, value: object, frame: Any) -> None:
        """Note the tensors passed to a call; their memory may be older than the recording."""
        for tensor in tensors_in(value):
            storage = storage_of(tensor)
            try:
                address = 0 if storage is None else storage.data_ptr()
            except RuntimeError:  # of a wrapper without memory of its own
                continue
            if address == 0 or address in self._seen or storage is None or storage.device.type != "cpu":
                continue
            self.watch(storage)
            line = self.spans.user_line(frame)
            self._seen[address] = SeenMemory(
                now_ns(),
                storage.nbytes(),
                str(tensor.dtype).removeprefix("torch."),
                list(tensor.shape),
                f"{line[0]}:{line[1]}" if line else "input",
            )

    def watch(self, storage: torch.UntypedStorage) -> None:
        """Note when a storage ends: the profiler does not report memory older than the recording."""
        address = storage.data_ptr()
        if address in self._watched:
            return

        def ended(_reference: object) -> None:
            if self.spans.active:
                self._ends_ns[address] = now_ns()

        self._watched[address] = weakref.ref(storage, ended)

    # Changes of torch.

    def _install(self) -> None:
        patches = self._patches
        patches.on_undo(self.names.forget)
        patches.on_undo(self._watched.clear)
        if not self._on_gpu:
            self.names.on_new_storage = self.watch
        # Memory that is older than the recording and is freed during it does not concern the user.
        patches.ignore_warning("Memory block of unknown size was allocated before")
        if not self._on_gpu:
            Alignments(self).install(patches)
        if self._fake:
            self._compute_nothing()
        profiler.switch_off_script_profiling(self.assume, patches)
        profiler.break_spans_at_annotations(self.spans, patches)
        StepHooks(self).install(patches)
        self._follow_zero_grad()
        self._calls.install(patches)
        follow_module_moves(patches)
        mode = _Lines(self, watch_memory=not self._on_gpu)
        self._follow_engine(mode)
        mode.__enter__()
        patches.on_undo(lambda: mode.__exit__(None, None, None))

    def _compute_nothing(self) -> None:
        self._values = FakeValues({}, _KNOWN_ELEMENTS, self.spans, self.assume)
        self._values.follow_thread()
        self._patches.on_undo(self._values.end)

    def _follow_zero_grad(self) -> None:
        """Follow ``zero_grad``, where gradients older than the recording may end."""
        zero_grad = Optimizer.zero_grad

        @functools.wraps(zero_grad)
        def zero_grad_followed(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self.before_step(optimizer)
            zero_grad(optimizer, *args, **kwargs)

        self._patches.replace(Optimizer, "zero_grad", zero_grad_followed)

    def _follow_engine(self, mode: _Lines) -> None:
        """Follow the user code that the autograd engine calls from inside a call: hooks, checkpoints."""
        run_engine = torch.autograd._engine_run_backward

        @functools.wraps(run_engine)
        def run(*args: Any, **kwargs: Any) -> Any:
            with mode.reentered():
                return run_engine(*args, **kwargs)

        self._patches.replace(torch.autograd, "_engine_run_backward", run)


class _Lines(ScriptWatch):
    """Notes each call with its line and the memory that it is given."""

    def __init__(self, recording: BlockRecording, *, watch_memory: bool) -> None:
        super().__init__(recording)
        self._recording = recording
        self._watch_memory = watch_memory

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._watch_memory and self._spans.active and not torch.compiler.is_compiling():
            self._recording.saw(args, sys._getframe())
            self._recording.saw(kwargs, sys._getframe())
        return super().__torch_function__(func, types, args, kwargs)


def _allocations() -> Iterator[MemoryChange]:
    """Yield the blocks that the allocators of all GPUs hold now."""
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active"):
                yield MemoryChange(0, CUDA, segment["device"], address, block["size"])
            address += block["size"]


class _Current:
    """The recording of this process, for its forks."""

    recording: BlockRecording | None = None
    registered = False


def _follow_forks(recording: BlockRecording | None) -> None:
    _Current.recording = recording
    if not _Current.registered:
        _Current.registered = True
        after_fork(_in_fork)


def _in_fork() -> None:
    if _Current.recording is not None:
        _Current.recording.in_fork()
