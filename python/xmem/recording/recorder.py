"""``xmem.record``: the memory of a block of the running process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import weakref
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from xmem import __version__
from xmem.errors import CaptureError, ConfigError, XmemError
from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import Estimate
from xmem.estimation.estimate_file import write_estimate
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import answer
from xmem.estimation.question import ask
from xmem.files.writing import write_whole
from xmem.recording.older_memory import changes_before, measured_peaks
from xmem.trace.trace import read_trace

if TYPE_CHECKING:
    from xmem.capture.child.xmem_child.block import BlockRecording, RecordedBlock

RecordedDevice = Literal["auto", "cpu", "fake", "cuda"]
StrPath = str | os.PathLike[str]

_DEVICES = ("auto", "cpu", "fake", "cuda")
_OLDEST_TORCH = (2, 5)

_NOT_YET = "the block has not ended yet; ask for results after it"
_FAILED = "the block ended with an exception, so that its recording was discarded"
_NESTED = "another recording was running already; only the outermost one records"
_EMPTY = "the block made no tensor and used none"
_CAPTURED = "the whole script is being captured; its trace has this block too"

# The profiler records one block of a process at a time.
_one_at_a_time = threading.Lock()


class Recorder:
    """Recording of the block that it is the context manager of; see ``record``.

    After the block: ``estimate``, ``analysis``, ``trace_path``, and the ``write_`` methods. They raise
    ``XmemError`` where there is no recording, because the block failed, lay inside another recording or
    had no tensors.
    """

    def __init__(
        self,
        *,
        gpu: str | None = None,
        capacity: int | str | None = None,
        alloc_conf: str | None = None,
        json: StrPath | None = None,
        html: StrPath | None = None,
        device: RecordedDevice = "auto",
    ) -> None:
        if device not in _DEVICES:
            raise ConfigError(f"device={device!r} is invalid", f"use one of {', '.join(_DEVICES)}")
        self._question = ask(gpu=gpu, capacity=capacity, alloc_conf=alloc_conf)
        self._json = json
        self._html = html
        self._device = device
        self._within: object = None
        self._recording: BlockRecording | None = None
        self._trace: Path | None = None
        self._missing: str | None = _NOT_YET  # why there is no result; None when there is one

    def within(self, owner: object) -> Recorder:
        """Set the owner of the method that is recorded: a module's name then precedes those of its parts."""
        self._within = owner
        return self

    def __enter__(self) -> Recorder:
        if self._recording is not None or self._missing != _NOT_YET:
            raise ConfigError("a recorder cannot be used again", "make a new xmem.record() for each block")
        if "XMEM_CAPTURE" in os.environ and "xmem_child" in sys.modules:
            self._missing = _CAPTURED
        elif not _one_at_a_time.acquire(blocking=False):
            self._missing = _NESTED
        else:
            try:
                self._recording = _start(self._device, self._within)
            except BaseException:
                _one_at_a_time.release()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recording is None:
            return
        recording, self._recording = self._recording, None
        is_wanted = kind is None and self._missing == _NOT_YET
        if self._missing == _NOT_YET:
            self._missing = _FAILED
        try:
            recording.stop()
            if is_wanted:
                self._keep(recording)
        finally:
            _one_at_a_time.release()
        if is_wanted:
            if self._json is not None:
                self.write_json(self._json)
            if self._html is not None:
                self.write_html(self._html)

    def discard(self, reason: str = _FAILED) -> None:
        """Drop the result, whatever is recorded; later access raises an error with ``reason``."""
        self._missing = reason
        self._trace = None
        self.__dict__.pop("analysis", None)

    @property
    def is_recorded(self) -> bool:
        """Whether there is a result."""
        return self._missing is None

    @property
    def trace_path(self) -> Path:
        """Path of the trace; it is deleted with this object, so copy it or call ``write_trace`` to keep it.

        Raises:
            XmemError: There is no recording.
        """
        if self._missing is not None or self._trace is None:
            raise XmemError(f"there is no recording: {self._missing}")
        return self._trace

    @cached_property
    def analysis(self) -> Analysis:
        """The estimate and the data behind it, computed on first access.

        Raises:
            XmemError: There is no recording, or it holds no memory.
        """
        made = answer(observe(self.trace_path), self._question)
        # The trace is deleted with this object, so its name would be useless.
        return replace(made, estimate=replace(made.estimate, trace=replace(made.estimate.trace, path="")))

    @property
    def estimate(self) -> Estimate:
        """The memory that the block needs on a GPU.

        Raises:
            XmemError: There is no recording, or it holds no memory.
        """
        return self.analysis.estimate

    def write_trace(self, path: StrPath) -> None:
        """Keep the trace, for ``xmem-fast estimate`` and the like; compressed when the name ends in ``.gz``.

        Raises:
            XmemError: There is no recording.
            OSError: The file cannot be written.
        """
        source = self.trace_path
        if Path(path).suffix == ".gz":
            import gzip

            write_whole(path, gzip.compress(source.read_bytes(), compresslevel=1, mtime=0))
        else:
            shutil.copyfile(source, path)

    def write_json(self, path: StrPath) -> None:
        """Write the estimate as ``xmem-fast estimate --json`` prints it.

        Raises:
            XmemError: There is no recording.
            OSError: The file cannot be written.
        """
        write_estimate(path, self.estimate)

    def write_html(self, path: StrPath) -> None:
        """Write the report as one page.

        Raises:
            XmemError: There is no recording.
            ConfigError: A package that the page needs is not installed.
            OSError: The file cannot be written.
        """
        from xmem.advice import PAGE_BUDGET_S, advise
        from xmem.reports.html import write_page

        write_page(self.analysis, path, advised=advise(self.analysis, budget_s=PAGE_BUDGET_S))

    def _keep(self, recording: BlockRecording) -> None:
        """Write the recording to a folder of its own."""
        folder = Path(tempfile.mkdtemp(prefix="xmem-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        raw, trace = folder / "raw.json", folder / "trace.json"
        try:
            has_memory = _complete(recording.finish(raw), trace)
            raw.unlink()
        except (OSError, RuntimeError) as error:
            raise CaptureError(
                f"the recording could not be written ({error}); free disk space in {tempfile.gettempdir()}"
            ) from error
        if not has_memory:
            self._missing = _EMPTY
            return
        self._trace = trace
        self._missing = None


def record(
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    json: StrPath | None = None,
    html: StrPath | None = None,
    device: RecordedDevice = "auto",
) -> Recorder:
    """Record the memory of a block of the running process: a training step, a loop, an inference.

    ::

        with xmem.record(gpu="rtx-4090") as recorder:
            train_one_epoch(model, batches)
        print(recorder.estimate.fits)

    On the CPU this predicts what the block needs on a GPU; on a GPU it measures. The recording ends with the
    block and leaves torch as it was before.

    Args:
        gpu: Name of a GPU (``xmem-fast gpus``) that the result is for.
        capacity: Memory of the GPU in bytes or as text (``"11.5GiB"``); wins over that of ``gpu``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job.
        json: File to write the estimate to when the block has ended.
        html: File to write the report to when the block has ended.
        device: ``cpu`` to predict, ``cuda`` to measure; ``auto`` measures where torch sees a GPU. ``fake``
            predicts and computes nothing: it takes no time and no memory, and what the block makes holds
            no values.

    Raises:
        ConfigError: The GPU, the capacity, the settings or the device is invalid, or a profiler is
            running already.
        CaptureError: Torch is missing or too old, or the recording cannot be written.
    """
    return Recorder(gpu=gpu, capacity=capacity, alloc_conf=alloc_conf, json=json, html=html, device=device)


def _start(device: RecordedDevice, within: object) -> BlockRecording:
    on_gpu = _is_on_gpu(device)
    from xmem.capture.child.xmem_child.block import BlockRecording

    recording = BlockRecording(on_gpu=on_gpu, xmem_version=__version__, fake=device == "fake")
    try:
        recording.start(within)
    except RuntimeError as error:
        raise ConfigError(
            f"recording cannot start while another profiler runs ({error})",
            "record a block without a profiler around it",
        ) from error
    return recording


def _is_on_gpu(device: RecordedDevice) -> bool:
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise CaptureError("torch cannot be imported; install it where the block runs") from error
    major, minor = torch.__version__.split(".")[:2]
    if (int(major), int(minor)) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise CaptureError(f"torch is {torch.__version__}; recording needs torch {oldest} or newer")
    has_gpu = bool(torch.cuda.is_available())
    if device == "cuda" and not has_gpu:
        raise ConfigError(
            "device='cuda' needs a GPU, and torch sees none", "use 'cpu' or 'auto', which predict"
        )
    return has_gpu and device not in ("cpu", "fake")


def _complete(recorded: RecordedBlock, trace: Path) -> bool:
    """Complete the profiler's trace with metadata, spans and older memory.

    Returns:
        Whether the trace holds any memory.
    """
    profiled = read_trace(recorded.file.path)
    memory = changes_before(recorded, profiled)
    if "measured" in recorded.metadata:
        devices = measured_peaks(recorded, profiled)
        recorded.metadata["measured"]["ranks"] = [
            {"rank": 0, "process": recorded.process, "devices": devices}
        ]
    recorded.file.complete(trace, recorded.metadata, recorded.spans, recorded.process, memory)
    return len(profiled.memory) > 0 or len(memory) > 0
