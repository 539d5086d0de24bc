"""How busy the kernels of a captured run keep a GPU, where the capture wrote its launches down."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from xmem.errors import ConfigError, TraceError
from xmem.estimation.estimate import OccupancyMean, OccupancyRecord
from xmem.trace.trace import Trace

if TYPE_CHECKING:
    from xmem.occupancy.averages import Average
    from xmem.occupancy.summary import Occupancy


_found: WeakKeyDictionary[Trace, Occupancy | None] = WeakKeyDictionary()


def occupancy_in(trace: Trace) -> Occupancy | None:
    """Return the occupancy of the last iteration; None where nothing is known of the launches.

    It is found out once for a trace: an estimate and its page ask for it.
    """
    if trace.notes.launches is None:
        return None
    if trace not in _found:
        _found[trace] = _occupancy(trace)
    return _found[trace]


def _occupancy(trace: Trace) -> Occupancy | None:
    from xmem.occupancy.of_capture import occupancy_of_capture  # for captures with launches alone

    try:
        return occupancy_of_capture(trace)
    except (ConfigError, TraceError):
        return None  # `xmem-fast occupancy` says why; the memory does not depend on it


def occupancy_record(trace: Trace) -> OccupancyRecord | None:
    """Return what an estimate says of it."""
    found = occupancy_in(trace)
    if found is None:
        return None
    return OccupancyRecord(
        gpu=found.gpu,
        launches=found.launches,
        unknown=found.counts["unknown"],
        launch_mean=_mean(found.means.launch_mean),
        launch_mean_active=_mean(found.means.launch_mean_active),
    )


def _mean(average: Average) -> OccupancyMean:
    return OccupancyMean(average.value, average.low, average.high)
