"""Models that predict the memory of a script at any size from runs at a few small sizes.

Two runs of one script at different sizes issue the same operators in the same order; only the sizes of their
blocks differ, and they are polynomials in the dimensions that changed.

    samples -> alignment of their blocks -> a polynomial per block -> an Observation at any point
"""

from xmem.scaling.dimensions import Point, grid, label, parse_point, parse_values, substitute
from xmem.scaling.largest import Largest, Prober, find_largest
from xmem.scaling.model import Sample, ScalingModel, fit
from xmem.scaling.model_file import read_model, write_model
from xmem.scaling.verification import Verification, verify

__all__ = [
    "Largest",
    "Point",
    "Prober",
    "Sample",
    "ScalingModel",
    "Verification",
    "find_largest",
    "fit",
    "grid",
    "label",
    "parse_point",
    "parse_values",
    "read_model",
    "substitute",
    "verify",
    "write_model",
]
