"""Tells the phantom's NCCL which ranks of a communicator are on the server of this one.

NCCL takes other buffers for ranks on other servers. PyTorch knows the ranks of a group; NCCL only sees the
number of a communicator, which it takes from the store, or the colour by which it is split off. Source:
``ProcessGroupNCCL::broadcastUniqueNCCLID`` of torch 2.6 to 2.13.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..absent.groups import ranks_here

_ID_BYTES = 128
# default_pg/0//cuda//0 of the default group, default_pg/0//9//cuda//0 of group 9, cuda//0:1 of two ranks
_KEY = re.compile(r"^default_pg/\d+//((?P<group>.+)//)?cuda//(?P<members>\d+(:\d+)?)$")


def tell_ranks_of_id(key: str, number: bytes) -> None:
    """Tell how many ranks of the communicator with this number are here.

    Args:
        key: Of the number in the job's store.
        number: The 128 bytes of ``ncclUniqueId``.
    """
    found = _KEY.match(key)
    if found is None or len(number) != _ID_BYTES:
        return
    ranks = _ranks_of(found["group"])
    if ":" in found["members"]:  # two that send to each other
        ranks = [ranks[int(place)] for place in found["members"].split(":")]
    tell = ctypes.CDLL(None).xmem_phantom_group_of_id
    tell.argtypes = [ctypes.c_char_p, ctypes.c_int]
    tell.restype = None
    tell(number, ranks_here(ranks))


def told_color(original: Callable[..., int], ranks: list[int]) -> int:
    """Tell which ranks a communicator will have that is split off by this colour."""
    color, own = original(ranks), dist.get_rank()
    if own in ranks:
        tell = ctypes.CDLL(None).xmem_phantom_group_of_color
        tell.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        tell.restype = None
        tell(color, ranks.index(own), len(ranks), ranks_here(ranks))
    return color


def _ranks_of(group: str | None) -> Sequence[int]:
    """Return the global ranks of a group by its name; all for the default group, which has none here."""
    for made, name in c10d._world.pg_names.items():
        if name == group:
            return list(c10d._world.pg_group_ranks[made])
    return range(int(os.environ["WORLD_SIZE"]))
