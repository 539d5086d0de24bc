"""The occupancy of a run that was captured with its launches."""

from __future__ import annotations

from xmem.errors import TraceError
from xmem.occupancy.recorded import launches_of, of_last_iteration
from xmem.occupancy.summary import Occupancy, occupancy_of
from xmem.trace.trace import Trace


def occupancy_of_capture(trace: Trace) -> Occupancy:
    """Return the occupancy of the last iteration, on the GPU that the capture ran on.

    Raises:
        TraceError: The capture wrote no launches down, does not say of which GPU they are, or nothing is
            known of any.
        ConfigError: The limits of the GPU's compute capability are not known.
    """
    launches = of_last_iteration(trace, launches_of(trace))
    notes = trace.notes.launches
    assert notes is not None
    if len(notes.compute_capability) != 2 or notes.multiprocessors < 1:
        raise TraceError("the trace does not say which GPU its launches are of", trace.path)
    major, minor = notes.compute_capability
    return occupancy_of(launches, notes.gpu, (major, minor), notes.multiprocessors)
