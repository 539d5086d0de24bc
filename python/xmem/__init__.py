"""xMem: how much GPU memory will this PyTorch job need, known before it runs and without a GPU."""

from xmem.errors import CaptureError, ConfigError, TraceError, XmemError

__all__ = ["CaptureError", "ConfigError", "TraceError", "XmemError"]
