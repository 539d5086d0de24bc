"""Notes on a run beside its profile: the ``xmem`` object of the trace, the spans of iterations."""

from __future__ import annotations

import platform
import sys
from typing import Any

import torch

from ..masking import masked_arguments
from ..watching.device_memory import usage
from ..watching.iterations import Iterations
from ..watching.script_settings import ScriptSettings
from ..watching.spans import Span, SpanRecorder
from ..watching.tensor_names import TensorNames
from .attention_choices import AttentionChoices

# What cannot be followed exactly on the CPU; the estimate knows by how much (``xmem.estimation.interval``).
_DOUBTS = {
    "graphs_of_gradients": (
        "a backward pass that makes a graph (create_graph=True) numbers its nodes in a thread of its own on "
        "a GPU, and on the CPU not: the backward of that graph runs in another order, and its peak may be "
        "some gradients higher or lower, which widens the interval (--mode phantom has the order)"
    ),
    "transforms": (
        "while it records shapes, as it must on the CPU, the profiler keeps memory of torch.func's "
        "transforms (vmap, grad) that a GPU lets go: the estimate may be far too high, which widens the "
        "interval (--mode phantom records no shapes)"
    ),
}


class RunNotes:
    """Notes that are collected while a run is recorded.

    Attributes:
        spans: Spans of modules and source lines.
        names: Names of tensors.
        script_settings: Settings of torch that the script changed.
        iterations: Counts of iterations.
        attention: Calls of attention that may not take every kernel.
        thread: The recorded thread, 0 before the recording.
    """

    def __init__(self) -> None:
        self.spans = SpanRecorder()
        self.names = TensorNames()
        self.script_settings = ScriptSettings()
        self.iterations = Iterations()
        self.attention = AttentionChoices()
        self._doubts: dict[str, None] = {}
        self.thread = 0
        self._argv = masked_arguments(sys.argv)
        self._first_iteration_ns = -1
        self._alignments: dict[str, tuple[int, str]] = {}
        self._assumptions: dict[str, None] = {}

    def align(self, name: str, note: str) -> None:
        """Count one place where the CPU was made to allocate as CUDA would."""
        count, _ = self._alignments.get(name, (0, note))
        self._alignments[name] = (count + 1, note)

    def assume(self, text: str) -> None:
        """Remember an assumption for the metadata."""
        self._assumptions[text] = None

    def doubt(self, name: str) -> None:
        """Remember that the run on the CPU did what cannot be followed exactly there."""
        self._doubts[name] = None
        self.assume(_DOUBTS[name])

    def note_training(self, time_ns: int) -> None:
        """Note training; the first iteration begins with the first such note."""
        if self._first_iteration_ns < 0:
            self._first_iteration_ns = time_ns

    def iteration_spans(self, end_ns: int) -> list[Span]:
        """Return the spans of the iterations, one after the other."""
        begin = self._first_iteration_ns if self._first_iteration_ns >= 0 else end_ns
        spans = []
        for number, end in enumerate(self.iterations.ends_ns()):
            spans.append(("xmem_iteration", f"iteration {number}", self.thread, min(begin, end), end))
            begin = end
        return spans

    def metadata(self, mode: str, xmem_version: str, iterations: int, base_ns: int) -> dict[str, Any]:
        """Return the ``xmem`` object, with times since ``base_ns`` (docs/trace_model.md, section 7)."""
        return {
            "format": 1,
            "mode": mode,
            "versions": {
                "xmem": xmem_version,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "argv": self._argv,
            "iterations": iterations,
            "iteration_kind": self.iterations.kind,
            "device_requests": usage.requests,
            "settings": self.script_settings.values(),
            "alignments": [
                {"name": name, "count": count, "note": note}
                for name, (count, note) in self._alignments.items()
            ],
            "assumptions": list(self._assumptions),
            "doubts": list(self._doubts),
            "attention": self.attention.columns(base_ns),
            "lines": self.spans.lines(),
            "modules": self.names.modules,
            "tensors": self.names.columns(base_ns),
            "optimizers": self.iterations.descriptions(),
        }
