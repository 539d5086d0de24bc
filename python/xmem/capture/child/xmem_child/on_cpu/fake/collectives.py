"""Collectives of groups whose other ranks do not run: made as all that computes, and over at once.

They are made at the dispatcher, where ``torch.distributed``, the reducer of DDP and functional collectives
come by (namespace ``c10d``; ``torch/csrc/distributed/c10d/Ops.cpp`` of torch 2.10 to 2.13). What PyTorch
allocates for NCCL is allocated, and nothing is moved: values that are known follow from
``values.collectives``.
"""

from __future__ import annotations

from typing import Any

import torch

from .contents import FakeContents
from .nccl import Connections, group_of, is_on_gpu
from .operators import Args, FakeOperator, Kwargs, Maker, tensors_in

SPACE = "c10d::"
_WRITE_NOTHING = frozenset({"send", "barrier"})
# NCCL takes one tensor for all ranks, from or to which lists are copied (``newLikeFlat``,
# ProcessGroupNCCL.cpp); the argument with the list.
_FLATTENED = {"allgather_": 0, "reduce_scatter_": 1}
_BARRIER_ELEMENTS = 1  # of float32, on which all reduce


class FakeCollectives:
    """Makes what collectives return.

    Args:
        contents: Where it is noted that nobody has written that.
        maker: Makes tensors.

    Attributes:
        connections: What NCCL connects for them.
    """

    def __init__(self, contents: FakeContents, maker: Maker) -> None:
        self._contents = contents
        self._maker = maker
        self.connections = Connections()

    def make(self, operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return what a collective returns. Those of the host's tensors go to the stand-in for Gloo, which
        finds the own values for each rank."""
        name, returns = operator.name.removeprefix(SPACE), len(operator.overload._schema.returns)
        names = (argument.name for argument in operator.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        group = group_of(given)
        if group is None or not is_on_gpu(group, args):
            return operator.call_at(keys, args, kwargs)
        self.connections.note(group, name, given)
        beside = self._beside(name, args)
        written = [] if name in _WRITE_NOTHING else list(tensors_in(args[0]))
        for tensor in written:
            self._contents.lose(tensor)
        del beside
        if returns == 0:
            return None
        work = _over(written)
        return work if returns == 1 else (args[0], work)

    def _beside(self, name: str, args: Args) -> torch.Tensor | None:
        """Return what PyTorch allocates on the GPU for the time of a collective."""
        if name == "barrier":
            return self._maker.new((_BARRIER_ELEMENTS,), (1,), torch.float32)
        if name not in _FLATTENED:
            return None
        listed = args[_FLATTENED[name]][0]
        first, count = listed[0], len(listed)
        if any(tensor.size() != first.size() for tensor in listed):  # sent one by one
            return None
        elements = count * first.numel()
        return self._maker.new((elements,), (1,), first.dtype)


def _over(written: list[torch.Tensor]) -> Any:
    """Return work that is done, as the dispatcher takes it: its future holds what was written, for DDP."""
    future: Any = torch.futures.Future()
    future.set_result(written)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()
