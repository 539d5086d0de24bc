"""xMem: how much GPU memory will this PyTorch job need, known before it runs and without a GPU."""

from xmem.attribution import attribute
from xmem.blocks import pair_blocks
from xmem.errors import CaptureError, ConfigError, TraceError, XmemError
from xmem.estimate import estimate
from xmem.simulation import make_requests, replay
from xmem.trace import read_trace

__all__ = [
    "CaptureError",
    "ConfigError",
    "TraceError",
    "XmemError",
    "attribute",
    "estimate",
    "make_requests",
    "pair_blocks",
    "read_trace",
    "replay",
]
