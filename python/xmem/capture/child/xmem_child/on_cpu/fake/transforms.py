"""Fourier transforms, and what is made of complex numbers: blocks that live while the GPU computes.

Upstream: ``aten/src/ATen/native/cuda/SpectralOps.cpp`` (``exec_fft`` takes cuFFT's work area; what gives real
numbers overwrites its input, which is copied), ``native/UnaryOps.cpp``
(``unary_op_impl_with_complex_to_float_out``) of torch 2.6 to 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ...values.operators import unfollowed
from .fourier_passes import work_bytes
from .operators import Args, FakeOperator, Kwargs, Maker, dense_strides, tensors_in

_ASSUMED = "work areas of Fourier transforms follow rules that were measured with CUDA 13"
# Of the wheels in the package index.
_FIRST_WITH_CUDA_13 = "2.11"


def follow_transforms(maker: Maker, assume: Callable[[str], None]) -> None:
    """Make transforms with what they take meanwhile.

    Args:
        maker: Makes tensors.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def transformed(operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        made = maker.make_plainly(operator, keys, args, kwargs)
        result = next(tensors_in(made))
        with unfollowed():
            given, axes = args[0], [axis % args[0].dim() for axis in args[1]]
            copied = _alike(maker, given) if operator.name.startswith("_fft_c2r") else None
            work = _work_bytes(given, result, axes) if axes and given.numel() else 0
            if work:
                assume(_ASSUMED)
            area = maker.new((work,), (1,), torch.uint8) if work else None
            del copied, area
        return made

    def to_real(operator: FakeOperator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
        with unfollowed():
            meanwhile = _alike(maker, args[0]) if args[0].is_complex() else None
        made = maker.make_plainly(operator, keys, args, kwargs)
        del meanwhile
        return made

    for name in ("_fft_r2c", "_fft_c2r", "_fft_c2c"):
        maker.make_specially(name, transformed)
    for name in ("abs.out", "angle.out"):
        maker.make_specially(name, to_real)


def _alike(maker: Maker, tensor: Tensor) -> Tensor:
    return maker.new(tuple(tensor.size()), dense_strides(tensor), tensor.dtype)


def _work_bytes(given: Tensor, result: Tensor, axes: list[int]) -> int:
    """Return the size of the work area of a transform of a tensor along some axes."""
    real = not (given.is_complex() and result.is_complex())
    signal = result if real and given.is_complex() else given
    spectrum = given if given.is_complex() else result
    # Without real numbers, the axes are taken in the order in which they lie in memory.
    order = axes if real else sorted(axes, key=given.stride, reverse=True)
    lengths = [int(signal.size(axis)) for axis in order]
    item = int(spectrum.element_size())
    strided = given.stride(order[-1]) != 1
    work = work_bytes(lengths, int(signal.numel()) // math.prod(lengths), item, real=real, strided=strided)
    # What csrc/phantom/libraries/cufft.cpp says of releases before CUDA 13.
    copies = len(lengths) > 1 and TorchVersion(torch.__version__) < _FIRST_WITH_CUDA_13
    return max(work, item * int(spectrum.numel())) if copies else work
