"""The graph of a model, without running it: PyTorch's own dispatcher on tensors without data.

Parameters and inputs move to the device ``meta``, where operators know the shapes of their results and
compute nothing. Who made a tensor is known here, other than in recordings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xmem.occupancy.learned.graph import OperatorGraph, graph_of_edges
from xmem.occupancy.problems import Problem, Product, alignment_of

_VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "expand",
        "slice",
        "select",
        "squeeze",
        "unsqueeze",
        "split",
        "chunk",
        "detach",
        "alias",
        "as_strided",
        "unbind",
        "split_with_sizes",
        "empty",
        "empty_like",
        "empty_strided",
        "lift_fresh",
    ]
)

# What CUDA runs for what other devices run.
_ON_CUDA = {
    "native_batch_norm": "cudnn_batch_norm",
    "_native_batch_norm_legit_no_training": "cudnn_batch_norm",
}


class _Recorder(TorchDispatchMode):
    """Notes every operator that makes a tensor, with what it took; views belong to what they look at."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[Problem] = []
        self.edges: list[tuple[int, int, int, int]] = []
        self._maker: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no identity is used twice

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._kept += outputs
        name = function.overloadpacket.__name__
        makers = {self._maker[id(item)]: item for item in inputs if id(item) in self._maker}
        if name in _VIEWS or not outputs:
            for output in outputs:
                if makers:
                    self._maker[id(output)] = max(makers)
            return result
        node = len(self.problems)
        self.problems.append(_problem(name, inputs, args))
        for maker, item in makers.items():
            is_previous = maker == node - 1
            self.edges.append((maker, node, 0 if is_previous else 1, item.numel() * item.element_size()))
        for output in outputs:
            self._maker[id(output)] = node
        return result


def graph_of(
    model: torch.nn.Module, inputs: Sequence[Any], keywords: dict[str, Any] | None = None
) -> OperatorGraph:
    """Return the graph of one forward pass, in evaluation mode and without gradients. Computes nothing.

    Args:
        model: On any device, or on ``meta``.
        inputs: Positional arguments of its forward; tensors of any device.
        keywords: The others.
    """
    model = model.eval().to("meta")

    def without_data(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    positional = [without_data(value) for value in inputs]
    named = {name: without_data(value) for name, value in (keywords or {}).items()}
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        model(*positional, **named)
    return graph_of_edges(recorder.problems, recorder.edges)


def _problem(name: str, inputs: Sequence[torch.Tensor], args: Sequence[Any]) -> Problem:
    short = name[:-1] if name.endswith("_") else name
    shapes = tuple(tuple(item.shape) for item in inputs)
    dtypes = tuple(str(item.dtype).removeprefix("torch.") for item in inputs)
    dense = tuple(item.is_contiguous() for item in inputs)
    if short in ("convolution", "_convolution"):
        return Problem(
            "aten::cudnn_convolution", shapes[:2], dtypes[:2], dense[:2], _convolution(inputs, args)
        )
    short = _ON_CUDA.get(short, short)
    return Problem(f"aten::{short}", shapes, dtypes, dense, _product(short, inputs))


def _product(name: str, inputs: Sequence[torch.Tensor]) -> Product | None:
    first = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}.get(name)
    if first is None or len(inputs) < first + 2:
        return None
    left, right = inputs[first], inputs[first + 1]
    (rows, depth), columns = left.shape[-2:], right.shape[-1]
    steps = [item.stride() for item in (right, left)]
    layout = "".join("n" if step[-1] == 1 else "t" for step in steps)
    leading = [step[-2] if step[-1] == 1 else step[-1] for step in steps]
    batch = left.shape[0] if left.dim() == 3 else 1
    return Product(
        columns, rows, depth, batch, layout, alignment_of(columns, *(size for size in leading if size))
    )


def _convolution(inputs: Sequence[torch.Tensor], args: Sequence[Any]) -> Product:
    image, filters = inputs[0].shape, inputs[1].shape
    strides, paddings, dilations = (list(args[position]) for position in (3, 4, 5))
    places = image[0]
    for axis, (length, window) in enumerate(zip(image[2:], filters[2:], strict=True)):
        stride, padding, dilation = (
            values[min(axis, len(values) - 1)] for values in (strides, paddings, dilations)
        )
        places *= (length + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    return Product(filters[0], places, math.prod(filters[1:]), 1, "nchw", alignment_of(*filters[:2]))
