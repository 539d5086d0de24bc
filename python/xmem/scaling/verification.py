"""Comparison of a fitted model with a run that it was not fitted from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xmem.estimation.need import memory_needed
from xmem.records import dataclass
from xmem.scaling.alignment import align_blocks
from xmem.scaling.model import Sample, ScalingModel


@dataclass(frozen=True)
class Verification:
    """The model's prediction at a point, and the run there.

    Attributes:
        at: The point.
        peak_reserved_bytes: Peak according to the model.
        captured_peak_reserved_bytes: Peak according to the trace of the run.
        blocks: Blocks of the run on its device.
        blocks_equal: Blocks with a counterpart of the same size in the model.
        bytes_off: Sum of the differences of sizes, over blocks with a counterpart.
    """

    at: Mapping[str, int]
    peak_reserved_bytes: int
    captured_peak_reserved_bytes: int
    blocks: int
    blocks_equal: int
    bytes_off: int

    @property
    def relative_error(self) -> float:
        """Relative error of the peak: positive if the model predicts more than the run took."""
        return self.peak_reserved_bytes / self.captured_peak_reserved_bytes - 1


def verify(model: ScalingModel, held_out: Sample) -> Verification:
    """Compare a model with a run.

    Raises:
        ConfigError: The run has other dimensions, or differs too much to be from the same script.
    """
    predicted = model.at(held_out.point)
    (counterpart,) = align_blocks(predicted, [held_out.observed])
    rows = np.flatnonzero(counterpart >= 0)
    off = np.abs(
        predicted.workload.size_bytes[rows] - held_out.observed.workload.size_bytes[counterpart[rows]]
    )
    return Verification(
        at=dict(held_out.point),
        peak_reserved_bytes=memory_needed(predicted).peak_reserved_bytes,
        captured_peak_reserved_bytes=memory_needed(held_out.observed).peak_reserved_bytes,
        blocks=len(held_out.observed.workload),
        blocks_equal=int((off == 0).sum()),
        bytes_off=int(off.sum()),
    )
