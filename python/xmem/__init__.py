"""xMem: how much GPU memory will this PyTorch job need, known before it runs and without a GPU.

Names are imported when they are first used, so that ``import xmem`` costs nothing and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmem.batch_size import BatchSize, find_batch_size
    from xmem.errors import CaptureError, ConfigError, TraceError, XmemError
    from xmem.estimation.analysis import Analysis
    from xmem.estimation.estimate import Estimate
    from xmem.estimation.pipeline import analyze, estimate
    from xmem.recording import Recorder, memory_tracker, record
    from xmem.recording.magic import load_ipython_extension
    from xmem.simulation.replay import make_requests, replay
    from xmem.trace.attribution import attribute
    from xmem.trace.blocks import pair_blocks
    from xmem.trace.trace import Trace, read_trace

__version__ = "0.1.0"  # the one place: the build reads it here

__all__ = [
    "Analysis",
    "BatchSize",
    "CaptureError",
    "ConfigError",
    "Estimate",
    "Recorder",
    "Trace",
    "TraceError",
    "XmemError",
    "__version__",
    "analyze",
    "attribute",
    "estimate",
    "find_batch_size",
    "load_ipython_extension",
    "make_requests",
    "memory_tracker",
    "pair_blocks",
    "read_trace",
    "record",
    "replay",
]

_HOME = {
    "BatchSize": "batch_size",
    "find_batch_size": "batch_size",
    "attribute": "trace.attribution",
    "pair_blocks": "trace.blocks",
    "CaptureError": "errors",
    "ConfigError": "errors",
    "TraceError": "errors",
    "XmemError": "errors",
    "Recorder": "recording",
    "memory_tracker": "recording",
    "record": "recording",
    "load_ipython_extension": "recording.magic",
    "Estimate": "estimation.estimate",
    "Analysis": "estimation.analysis",
    "analyze": "estimation.pipeline",
    "estimate": "estimation.pipeline",
    "make_requests": "simulation.replay",
    "replay": "simulation.replay",
    "Trace": "trace.trace",
    "read_trace": "trace.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
