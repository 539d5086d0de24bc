"""xMem: how much GPU memory will this PyTorch job need, known before it runs and without a GPU.

Names are imported when they are first used, so that ``import xmem`` costs nothing and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmem.attribution import attribute
    from xmem.blocks import pair_blocks
    from xmem.errors import CaptureError, ConfigError, TraceError, XmemError
    from xmem.estimate_result import Estimate
    from xmem.pipeline import Analysis, analyze, estimate
    from xmem.recording import Recorder, memory_tracker, record
    from xmem.recording.magic import load_ipython_extension
    from xmem.simulation import make_requests, replay
    from xmem.trace import Trace, read_trace

__all__ = [
    "Analysis",
    "CaptureError",
    "ConfigError",
    "Estimate",
    "Recorder",
    "Trace",
    "TraceError",
    "XmemError",
    "analyze",
    "attribute",
    "estimate",
    "load_ipython_extension",
    "make_requests",
    "memory_tracker",
    "pair_blocks",
    "read_trace",
    "record",
    "replay",
]

_HOME = {
    "attribute": "attribution",
    "pair_blocks": "blocks",
    "CaptureError": "errors",
    "ConfigError": "errors",
    "TraceError": "errors",
    "XmemError": "errors",
    "Recorder": "recording",
    "memory_tracker": "recording",
    "record": "recording",
    "load_ipython_extension": "recording.magic",
    "Estimate": "estimate_result",
    "Analysis": "pipeline",
    "analyze": "pipeline",
    "estimate": "pipeline",
    "make_requests": "simulation",
    "replay": "simulation",
    "Trace": "trace",
    "read_trace": "trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
