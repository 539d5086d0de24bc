"""Recurrent layers under CUDA's autocast: cuDNN runs them in low precision, on copies of all that they take.

PyTorch casts at ``_cudnn_rnn``, which the CPU never calls: here the calls of whole layers are cast. Mirrors
``aten/src/ATen/cudnn/AutocastRNN.cpp`` (2.1 to 2.13): the weights into one block, then states and input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_KEY = "AutocastCPU"
_CAST = (torch.float32, torch.float16, torch.bfloat16)


class RecurrentCasts:
    """The kernels, in force while this object lives.

    Args:
        autocast_dtype: Tells CUDA's dtype of autocast, None where that is off.
        below_autocast: Makes a context in which operators do not cast.
    """

    def __init__(
        self, autocast_dtype: Callable[[], torch.dtype | None], below_autocast: Callable[[], Any]
    ) -> None:
        self._autocast_dtype = autocast_dtype
        self._below_autocast = below_autocast
        self._library = Library("aten", "IMPL")

    def install(self) -> None:
        """Register the kernels."""
        for layer in _LAYERS:
            for overload in ("input", "data"):
                operator = getattr(getattr(torch.ops.aten, layer), overload)
                if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _KEY):
                    self._library.impl(f"{layer}.{overload}", self._kernel(operator, overload), _KEY)

    def _kernel(self, operator: Any, overload: str) -> Callable[..., Any]:
        states_at = 1 if overload == "input" else 2

        def kernel(*args: Any) -> Any:
            dtype = self._autocast_dtype()
            if dtype is None:  # the CPU's own autocast, or none
                return operator(*args)
            with self._below_autocast():
                weights = args[states_at + 1]
                if not torch.backends.cudnn.enabled or weights[0].dtype not in _CAST:
                    return operator(*args)
                cast = list(args)
                if weights[0].dtype is not dtype:
                    cast[states_at + 1] = list(_IntoOneBlock.apply(dtype, *weights))
                states = args[states_at]
                if isinstance(states, torch.Tensor):
                    cast[states_at] = states.to(dtype)
                else:
                    cast[states_at] = [state.to(dtype) for state in reversed(states)][::-1]
                cast[0] = args[0].to(dtype)
                return operator(*cast)

        return kernel


class _IntoOneBlock(torch.autograd.Function):  # type: ignore[misc]
    """Copies of tensors in another dtype, one behind the other."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        block = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors), dtype=dtype)
        parts = block.split([tensor.numel() for tensor in tensors])
        copies = tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)
        return copies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        pairs = list(zip(gradients, ctx.dtypes, strict=True))
        in_order = [
            gradient.to(dtype) for gradient, dtype in reversed(pairs)
        ]  # the last copy's node runs first
        return (None, *reversed(in_order))
