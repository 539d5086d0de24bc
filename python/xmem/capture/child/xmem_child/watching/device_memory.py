"""Keeps track of which tensors stand for GPU memory.

On the phantom GPU torch itself knows. On the CPU all memory is the host's, so the fact is kept as an
attribute of the tensor's Python ``UntypedStorage`` object, which torch keeps alive as long as the storage
itself. Views share it, ``param.data = x`` carries it over, and a reused address never inherits it. Memory
that came out of C++ (a gradient, say) has no mark until Python first sees it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import torch

# Of a job of which some ranks run (``start_ranks.py``); without one, there is one GPU.
_IS_RANK = "XMEM_RANKS" in os.environ


def gpus_here() -> int:
    """Return how many GPUs the node of this process has."""
    return len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) if _IS_RANK else 1


CPU = torch.device("cpu")
CUDA = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if _IS_RANK else 0)

_storage_of = torch._C.TensorBase.untyped_storage
_functorch = torch._C._functorch
_MARK = "_xmem_device"
_KNOWN = {"cuda": True, "meta": False}  # kinds of storages that tell by themselves
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _CallState(threading.local):
    """Whether this thread is inside a call on device tensors, above all autograd's engine.

    Tensors without a mark that such a call hands to user code (gradients, results about to be saved) are
    device memory.
    """

    on_device = False


running = _CallState()


class _Usage:
    """What the script did.

    Attributes:
        requests: How often it asked for the GPU; at 0 it may still turn out to train on the CPU.
        transforms: Whether it computes inside of ``torch.func``'s transforms.
    """

    requests = 0
    transforms = False


usage = _Usage()


def names_gpu(device: object) -> bool:
    """Return whether a device argument means the GPU: ``"cuda"``, ``"cuda:0"``, ``torch.device("cuda")``,
    ``0``."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor: that of its values if it is sparse, of this rank's part if it is
    distributed, of all of it inside ``vmap`` and its like; None for tensors that have none."""
    if type(tensor) not in _PLAIN:
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        if _functorch.is_functorch_wrapped_tensor(tensor):
            usage.transforms = True
            return storage_of(_functorch.get_unwrapped(tensor))
        if tensor.layout is torch.sparse_coo:
            return _storage_of(tensor._values())
        return None
    except ValueError:  # a parameter that gets its size at the first call does not let anyone ask
        with torch._C.DisableTorchFunctionSubclass():
            return _storage_of(tensor)


def storage_is_device(storage: torch.UntypedStorage | None) -> bool:
    """Return whether a storage stands for GPU memory; settles it for storages that a running call hands to
    Python."""
    kind = None if storage is None else storage.device.type
    if kind in _KNOWN:
        return _KNOWN[kind]
    known: bool | None = getattr(storage, _MARK, None)
    if known is not None:
        return known
    if running.on_device and storage is not None:
        setattr(storage, _MARK, True)
        return True
    return False


def mark_storage(storage: torch.UntypedStorage | None, on_device: bool) -> None:
    """Mark where a storage lies, unless that is known."""
    if storage is not None and getattr(storage, _MARK, None) is None:
        setattr(storage, _MARK, on_device)


def is_device(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for GPU memory.

    A tensor that Python never saw being made is a result of scripted or foreign code if autograd follows it,
    and otherwise data that came from the host. Tensors without a storage stand for what is computed with.
    """
    storage = storage_of(tensor)
    if storage is None:
        return usage.requests > 0
    if usage.requests and getattr(storage, _MARK, None) is None and tensor.grad_fn is not None:
        setattr(storage, _MARK, True)
    return storage_is_device(storage)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Return whether Python saw a tensor being made in the host's memory."""
    return getattr(storage_of(tensor), _MARK, None) is False


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield all tensors of a value as functions take and return them: nested lists, tuples and
    dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def mark(value: object, on_device: bool) -> bool:
    """Mark where memory first seen in a result lies; marks that exist stay.

    Returns:
        Whether the value holds any tensor.
    """
    found = False
    for tensor in tensors_in(value):
        found = True
        mark_storage(storage_of(tensor), on_device)
    return found


def mark_made(tensor: torch.Tensor) -> None:
    """Mark memory of the host that C++ makes for what is on the GPU, in a script that uses it."""
    if tensor.device == CPU and usage.requests:
        mark_storage(storage_of(tensor), True)
