"""The parts of ``nn.SyncBatchNorm``, for which PyTorch has kernels for CUDA and no description.

Upstream: ``aten/src/ATen/native/cuda/Normalization.cu`` and ``Normalization.cuh`` of torch 2.6 to 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .operators import Maker, dense_strides


class SyncNorms:
    """Makes what the kernels return.

    Args:
        maker: Makes tensors.
    """

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._library = Library("aten", "IMPL")
        self._library.impl("batch_norm_stats", self._pair, "CPU")
        self._library.impl("batch_norm_gather_stats", self._pair, "CPU")
        self._library.impl("batch_norm_gather_stats_with_counts", self._pair, "CPU")
        self._library.impl("batch_norm_elemt", self._alike, "CPU")
        self._library.impl("batch_norm_backward_reduce", self._sums, "CPU")
        self._library.impl("batch_norm_backward_elemt", self._gradient, "CPU")

    def end(self) -> None:
        """Let PyTorch raise its own error again."""
        self._library._destroy()

    def _channels(self, input: Tensor) -> Tensor:
        """Make a number for each channel, in the type that sums have."""
        dtype = torch.promote_types(input.dtype, torch.float32)
        return self._maker.new((input.size(1),), (1,), dtype)

    def _pair(self, input: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._channels(input), self._channels(input)

    def _alike(self, input: Tensor, *_: Any, **__: Any) -> Tensor:
        return self._maker.new(tuple(input.size()), dense_strides(input), input.dtype)

    def _sums(
        self,
        _of_output: Tensor,
        input: Tensor,
        _mean: Tensor,
        _invstd: Tensor,
        weight: Tensor | None,
        of_input: bool,
        of_weight: bool,
        of_bias: bool,
    ) -> tuple[Any, ...]:
        sums = [self._channels(input) if of_input else None for _ in range(2)]
        like = input if weight is None else weight
        parameters = [
            self._maker.new((input.size(1),), (1,), like.dtype) if wanted else None
            for wanted in (of_weight, of_bias)
        ]
        return *sums, *parameters

    def _gradient(self, _of_output: Tensor, input: Tensor, *_: Any, **__: Any) -> Tensor:
        return self._alike(input)
