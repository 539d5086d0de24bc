"""The other processes of a run on the phantom GPU: ranks of its distributed job, or what else uses the
cards."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from ..settings import Settings

# Ranks of one job make their iterations at about the same pace. The captured one waits for the others as long
# as they do something, and for ranks that seem to do nothing, such as those that still import torch, a while.
_MOST_S = 120.0
_IDLE_RANKS_S = 20.0
_IDLE_S = 2.0
_POLL_S = 0.05


def rank_here() -> int:
    """Return the rank of this process in its distributed job, 0 outside of one."""
    distributed = _initialized()
    return int(distributed.get_rank() if distributed else os.environ.get("RANK", "0"))


def stands_for(rank: int) -> bool:
    """Return whether this process is the one to trace for a rank. In a fake process group it is the only
    one."""
    return rank_here() == rank or _is_fake()


def world_size() -> int:
    """Return the number of ranks of the distributed job."""
    distributed = _initialized()
    return int(distributed.get_world_size()) if distributed else 1


def wait_for_peers(settings: Settings) -> int:
    """Wait until the other ranks have said what they held, and other processes have come to rest.

    Returns the number of ranks that said nothing.
    """
    # Where the process group is a fake, this process is the only one.
    ranks = set(range(world_size())) if settings.world is None else set(settings.world.ranks)
    expected = ranks - {rank_here()} if not _is_fake() else set()
    until, launches, changed = time.monotonic() + _MOST_S, -1, 0.0
    while (now := time.monotonic()) < until:
        missing = expected - {int(peer["rank"]) for peer in settings.peers()}
        if expected and not missing:
            return 0
        current = _launches_of_others()
        if current != launches:
            launches, changed = current, now
        if now - changed > (_IDLE_RANKS_S if missing else _IDLE_S) or (not expected and current == 0):
            return len(missing)
        time.sleep(_POLL_S)
    return len(missing)


def _launches_of_others() -> int:
    """Return how many kernels the other live processes of the run have launched so far."""
    count = ctypes.CDLL(None).xmem_phantom_launches_of_others
    count.restype = ctypes.c_int64
    return int(count())


def _initialized() -> Any:
    """Return ``torch.distributed``, if the script has set it up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _is_fake() -> bool:
    distributed = _initialized()
    return distributed is not None and distributed.get_backend() == "fake"
