"""Profile an unmodified CUDA training script on a machine without a GPU.

The command runs as the user typed it, with a few environment variables more; everything else happens inside
the process that trains (``child/``). This side needs no torch.
"""

from xmem.capture.capture import CaptureResult, DescribedGpu, capture

__all__ = ["CaptureResult", "DescribedGpu", "capture"]
