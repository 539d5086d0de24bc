"""Long columns shown at fewer rows: the highest row of each stretch, so that what is left out lies below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def highest_of_stretches(gauge: NDArray[np.int64], stretches: int) -> NDArray[np.intp]:
    """Return the rows at which a gauge is highest, one for each of at most ``stretches`` stretches of equal
    length.

    Args:
        gauge: Values that are not negative.
        stretches: Number of stretches, at least 1; a gauge that is no longer than this is shown at all of its
            rows.
    """
    count = len(gauge)
    width = max(-(-count // stretches), 1)
    begins = np.arange(0, count, width)
    padded = np.full(len(begins) * width, -1, np.int64)
    padded[:count] = gauge
    highest: NDArray[np.intp] = begins + np.argmax(padded.reshape(-1, width), axis=1)
    return highest
