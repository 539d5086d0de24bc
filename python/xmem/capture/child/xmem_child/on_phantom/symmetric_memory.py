"""Symmetric memory of ranks that do not run (``torch.distributed._symmetric_memory``, torch 2.6 to 2.13).

The ranks of a group tell each other, through a store, their process and how much they allocated, and send
each other a descriptor of the memory through a socket of that process (``CUDASymmetricMemory.cu``,
``CUDASymmetricMemoryUtils.cpp``). Here every peer is this process: it gets its own descriptor back, and maps
its own memory once more for each peer, which takes addresses and no memory.
"""

from __future__ import annotations

import os
from types import ModuleType

import torch.distributed as dist

from ..absent.store import own_store


def stand_in_for_peers(module: ModuleType) -> None:
    """Let the groups of ``torch.distributed._symmetric_memory`` meet in the store of this process.

    Up to torch 2.8, they meet in a file, for which rank 0 of the group has to say a name.
    """
    # All buffers of a group lie on the GPU of this rank.
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"

    def enable_symm_mem_for_group(group_name: str) -> None:
        if group_name in module._group_name_to_store:
            return
        group = dist.distributed_c10d._resolve_process_group(group_name)
        module._group_name_to_store[group_name] = own_store()
        module._SymmetricMemory.set_group_info(group_name, group.rank(), group.size(), own_store())

    if hasattr(module, "_group_name_to_store"):
        module.enable_symm_mem_for_group = enable_symm_mem_for_group  # type: ignore[attr-defined]
