"""Long columns shown at fewer rows: of each stretch its highest, so that what is left out lies below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def highest_of_stretches(gauge: NDArray[np.int64], stretches: int) -> NDArray[np.intp]:
    """Rows at which a gauge is highest, one of each of at most so many stretches of equal length.

    Args:
        gauge: Not negative.
        stretches: At least 1; a gauge that is no longer than this is shown at all of its rows.
    """
    count = len(gauge)
    width = max(-(-count // stretches), 1)
    begins = np.arange(0, count, width)
    padded = np.full(len(begins) * width, -1, np.int64)
    padded[:count] = gauge
    highest: NDArray[np.intp] = begins + np.argmax(padded.reshape(-1, width), axis=1)
    return highest
