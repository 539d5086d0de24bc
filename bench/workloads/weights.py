"""Models without the time that drawing their weights takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode

_SMALL = 1 << 14


@contextmanager
def uninitialised_weights() -> Iterator[None]:
    """Leaves large random tensors as they come from the host's allocator: no size depends on a weight, and
    drawing billions of them costs more than the measurement.
    """
    # It draws until everything lies inside its limits, which nothing would without a draw.
    with mock.patch("torch.nn.init._no_grad_trunc_normal_", lambda tensor, *_, **__: tensor), _SkipDraws():
        yield


class _SkipDraws(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("normal_", "uniform_") and args[0].numel() > _SMALL:
            return args[0]
        return func(*args, **(kwargs or {}))
