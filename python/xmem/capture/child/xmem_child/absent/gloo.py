"""Gloo's groups, for a process whose peers do not run: fakes, which find the own contribution for every rank.

Source: ``torch._C._distributed_c10d.FakeProcessGroup`` of torch 2.6 to 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_Gloo: Any = dist.ProcessGroupGloo
Fake: Any = torch._C._distributed_c10d.FakeProcessGroup


class _FakeGlooType(type):
    """Lets backends that the class makes pass for its instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (_Gloo, Fake))

    def __getattr__(cls, name: str) -> Any:
        return getattr(_Gloo, name)


class FakeGloo(metaclass=_FakeGlooType):
    """Stands in for ``ProcessGroupGloo``."""

    def __new__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        """Make a fake, with the arguments of ``ProcessGroupGloo``."""
        return fake_backend(rank, size)


def fake_backend(rank: int, size: int) -> Any:
    """Return a backend for CPU tensors that reaches nobody. Its way to be made has changed with torch 2.9."""
    for name in ("_set_sequence_number_for_group", "_set_default_timeout"):  # PyTorch calls them of Gloo
        setattr(Fake, name, lambda *_: None)
    make = getattr(Fake, "_create_internal", Fake)
    return make(rank, size)
