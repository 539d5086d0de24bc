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

from ...values.operators import unfollowed
from .operators import Args, FakeOperator, Kwargs, Maker, dense_strides, tensors_in

_ASSUMED = "work areas of Fourier transforms are those that the phantom GPU takes for cuFFT's, not measured"
# As csrc/phantom/libraries/cufft.cpp, which has the sources.
_LARGEST_RADIX = 127
_ONE_KERNEL_BYTES = 32 << 10


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
            signal = given if result.numel() < given.numel() else result
            kept = result if operator.name.startswith("_fft_r2c") else given
            work = _work_bytes(kept, [signal.size(axis) for axis in axes])
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


def _work_bytes(spectrum: Tensor, lengths: list[int]) -> int:
    """Return the size of the work area of a transform.

    Args:
        spectrum: The complex side.
        lengths: Of the signal, along the axes that are transformed.
    """
    item, elements = int(spectrum.element_size()), int(spectrum.numel())
    odd = [length for length in lengths if _largest_prime_factor(length) > _LARGEST_RADIX]
    if odd:
        return max(2 * item * (elements // length) * _power_above(2 * length - 1) for length in odd)
    if len(lengths) == 1 and lengths[0] * item <= _ONE_KERNEL_BYTES:
        return 0
    return elements * item


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _largest_prime_factor(number: int) -> int:
    largest = 1
    for factor in range(2, math.isqrt(number) + 1):
        while number % factor == 0:
            number //= factor
            largest = factor
    return max(largest, number)
