"""Profile an unmodified CUDA training script on a machine without a GPU.

The command runs as the user typed it, with a few environment variables more; everything else happens inside
the process that trains (``child/``). This side needs no torch.
"""

from xmem.capture.capture import CaptureResult, DescribedGpu, Mode, capture
from xmem.capture.extent import Extent
from xmem.capture.imbalance import imbalance_of
from xmem.capture.interpreter import TorchBuild, find_torch, has_gpu, path_with, with_python
from xmem.capture.phantom import PhantomMachine
from xmem.capture.world import World, launched_world, world_of

__all__ = [
    "CaptureResult",
    "DescribedGpu",
    "Extent",
    "Mode",
    "PhantomMachine",
    "TorchBuild",
    "World",
    "capture",
    "find_torch",
    "has_gpu",
    "imbalance_of",
    "launched_world",
    "path_with",
    "with_python",
    "world_of",
]
