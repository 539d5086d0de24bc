"""From runs of a script at a few small sizes to its memory at any size.

Two runs of one script at different sizes issue the same operators in the same order; only the sizes of their
blocks differ, and they are polynomials in the dimensions that changed.

    samples -> alignment of their blocks -> a polynomial a block -> an Observation at any point
"""

from xmem.scaling.dimensions import Point
from xmem.scaling.largest import Largest, find_largest
from xmem.scaling.model import Sample, ScalingModel, fit
from xmem.scaling.model_file import is_model_file, read_model, write_model

__all__ = [
    "Largest",
    "Point",
    "Sample",
    "ScalingModel",
    "find_largest",
    "fit",
    "is_model_file",
    "read_model",
    "write_model",
]
