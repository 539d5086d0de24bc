"""Static analysis in the manner of DNNMem: what the graph of one forward pass says, without running it.

Parameters, buffers and optimizer state live throughout. Going backward, what the forward pass kept dies and
gradients are born; the peak is the largest sum on the way. Tensors are rounded to 512 bytes, as PyTorch's
allocator does. Not counted, since the graph does not show it: workspaces, temporaries of operators and of the
optimizer, what outlives an iteration, fragmentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workloads import Job, prepare
from workloads.training import Prepared

_GRANULE_BYTES = 512
# Copies of a parameter that the optimizer keeps, with its defaults.
_STATES = {"SGD": 0, "Adam": 2, "AdamW": 2, "RMSprop": 1, "Adagrad": 1, "Adafactor": 0}


def peak_bytes(job: Job) -> int:
    """The most that is alive at once in an iteration whose optimizer state exists."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _peak(prepare(job))


def _peak(prepared: Prepared) -> int:
    parameters = {_storage(parameter): parameter for parameter in prepared.model.parameters()}
    saved: dict[int, int] = {}  # bytes by storage, in the order of the forward pass
    used: dict[int, int] = {}  # how many storages were saved before a parameter's first use

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key = _storage(tensor)
        if key in parameters:
            used.setdefault(key, len(saved))
        else:
            saved.setdefault(key, _rounded(tensor.untyped_storage().nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = [*_forward(prepared)]
    batch = sum(_size(tensor) for tensor in prepared.batch)
    outputs = sum(_size(tensor) for tensor in held if _storage(tensor) not in saved)
    weights = sum(map(_size, parameters.values()))
    states = weights * _STATES[prepared.job.optimizer.rpartition(".")[2]]
    constant = weights + states + batch + outputs + sum(map(_size, prepared.model.buffers()))
    gradients = [(used.get(key, 0), _size(parameter)) for key, parameter in parameters.items()]
    return constant + max(_backward(list(saved.values()), gradients))


def _backward(saved: list[int], gradients: list[tuple[int, int]]) -> Iterator[int]:
    """Activations left and gradients made so far, at each step from the last operator to the first."""
    made = [0] * (len(saved) + 1)
    for place, size in gradients:
        made[place] += size
    left, so_far = sum(saved), 0
    for place in range(len(saved), -1, -1):
        so_far += made[place]
        yield left + so_far
        left -= saved[place - 1] if place else 0


def _forward(prepared: Prepared) -> Iterator[torch.Tensor]:
    """The tensors that the caller holds after the forward pass."""
    if prepared.job.family == "cnn":
        images, labels = prepared.batch
        outputs = prepared.model(images)
        yield from (outputs, torch.nn.functional.cross_entropy(outputs, labels))
    else:
        # Without the mask of ones: whether it masks anything is decided by its values, which are not there.
        ids = prepared.batch[0]
        outputs = prepared.model(input_ids=ids, labels=ids)
        yield from (outputs.loss, outputs.logits)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _size(tensor: torch.Tensor) -> int:
    return _rounded(tensor.numel() * tensor.element_size())


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
