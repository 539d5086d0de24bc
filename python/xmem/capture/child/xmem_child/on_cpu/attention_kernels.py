"""What CUDA would do with a call of ``scaled_dot_product_attention``, known where it is called.

Upstream: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``attention.cu`` of torch 2.6 to 2.13.
The estimate chooses again, by the same rules, for the GPU that it is about
(``xmem.orchestration.attention.fused_kernels``); what can only be had here is what a call from scores keeps,
and how its result lies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from torch import Tensor

_WIDEST = 256  # head that flash computes
_CUDNN_FIRST = (2, 12)  # the first release whose cuDNN is new enough
_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9))


class _Kernel(Enum):
    MATH = "math"
    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    CUDNN = "cuDNN"


# By their numbers in `torch.nn.attention.SDPBackend`.
_KERNELS = (_Kernel.MATH, _Kernel.FLASH, _Kernel.EFFICIENT, _Kernel.CUDNN)
_DEFAULT_ORDER = (_Kernel.FLASH, _Kernel.EFFICIENT, _Kernel.MATH, _Kernel.CUDNN)


class _Switch(threading.local):
    """Whether the script allows flash, while a call switches it for the CPU."""

    script_allows_flash: bool | None = None


_switch = _Switch()


@contextmanager
def flash_of_the_cpu(is_on: bool) -> Iterator[None]:
    """Switch the CPU's flash kernel, which stands for every fused one of CUDA; what the script allows of
    CUDA's stays known here."""
    backends, outer = torch.backends.cuda, _switch.script_allows_flash
    had_flash = backends.flash_sdp_enabled()
    _switch.script_allows_flash = had_flash if outer is None else outer
    backends.enable_flash_sdp(is_on)
    try:
        yield
    finally:
        backends.enable_flash_sdp(had_flash)
        _switch.script_allows_flash = outer


def other_choice() -> tuple[list[str], bool] | None:
    """Return the kernels that the script allows, and whether it decides where cuDNN comes among them; None
    where it leaves CUDA its default."""
    allowed, is_ordered = _allowed(), _is_ordered()
    if not is_ordered and len(allowed) == len(_KERNELS):
        return None
    return [kernel.value for kernel in allowed], is_ordered


def computes_scores(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
) -> bool:
    """Return whether no fused kernel of CUDA takes a call, so that scores are computed and kept.

    Raises:
        RuntimeError: Nor may they be computed: the script allows no kernel that takes the call. It is CUDA's.
    """
    if query.dim() != 4 or 0 in query.shape or 0 in key.shape:
        return False
    kernel = _kernel_of(query, key, value, mask, is_causal, dropout)
    if kernel is None:
        raise RuntimeError("No available kernel. Aborting execution.")
    return kernel is _Kernel.MATH


def result_strides(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[int, ...]:
    """Return the strides of what a fused kernel returns: flash and cuDNN lay it out as its query, flash by
    heads if it pads them; the memory-efficient kernel by position, then by head.

    A capture leaves dropout out before it asks for a fused kernel, so it is not seen here that cuDNN takes
    no call with dropout.
    """
    _, heads, length, _ = query.shape
    width = value.size(-1)
    kernel = _kernel_of(query, key, value, mask, is_causal, 0.0)
    if kernel is _Kernel.FLASH and width % 8:
        return heads * length * width, length * width, width, 1
    if kernel in (_Kernel.FLASH, _Kernel.CUDNN):
        return _laid_out_as(query, width)
    return length * heads * width, width, heads * width, 1


def _laid_out_as(query: Tensor, width: int) -> tuple[int, ...]:
    """Return the strides of heads of a width in the order of those of the query."""
    size, strides = (*query.shape[:-1], width), [1] * query.dim()
    elements = width
    for place in sorted(range(query.dim() - 1), key=query.stride):
        strides[place] = elements
        elements *= size[place]
    return tuple(strides)


def _kernel_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
) -> _Kernel | None:
    """Return the first kernel of those that CUDA tries that takes a call."""
    for kernel in _tried():
        if _takes(kernel, query, key, value, mask, is_causal, dropout):
            return kernel
    return None


def _takes(
    kernel: _Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    dropout: float,
) -> bool:
    if kernel is _Kernel.MATH:
        return True
    if any(tensor.size(-1) > 1 and tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return False
    capability, item = torch.cuda.get_device_capability(), query.element_size()
    major, width, value_width = capability[0], query.size(-1), value.size(-1)
    if kernel is _Kernel.CUDNN:
        widest = 256 if major == 9 else 128
        eights = width % 8 == 0 and value_width % 8 == 0
        return item == 2 and major >= 8 and dropout == 0 and eights and width <= widest
    if kernel is _Kernel.FLASH:
        little = capability in _LITTLE_SHARED_MEMORY or major == 12
        too_wide = little and (192 < width <= 224 or (width > 224 and dropout > 0))
        uneven = is_causal and query.size(-2) != key.size(-2)
        fits = width == value_width and width <= _WIDEST
        return item == 2 and major >= 8 and mask is None and fits and not too_wide and not uneven
    multiple = 8 if item == 2 else 4
    fits = width % multiple == 0 and value_width % multiple == 0
    if query.dtype == torch.bfloat16 and major < 8:
        return False
    return bool(item <= 4 and fits and query.size(1) == key.size(1))


def _tried() -> tuple[_Kernel, ...]:
    """Return the kernels in the order in which CUDA tries them."""
    allowed = _allowed()
    major, _ = torch.cuda.get_device_capability()
    if _Kernel.CUDNN in allowed and not _is_ordered() and major in (9, 10) and _release() >= _CUDNN_FIRST:
        return (_Kernel.CUDNN, *(kernel for kernel in allowed if kernel is not _Kernel.CUDNN))
    return allowed


def _allowed() -> tuple[_Kernel, ...]:
    """Return the kernels that the script allows, by its priorities (``torch.nn.attention.sdpa_kernel``)."""
    backends, allows_flash = torch.backends.cuda, _switch.script_allows_flash
    is_on = {
        _Kernel.MATH: backends.math_sdp_enabled(),
        _Kernel.FLASH: backends.flash_sdp_enabled() if allows_flash is None else allows_flash,
        _Kernel.EFFICIENT: backends.mem_efficient_sdp_enabled(),
        _Kernel.CUDNN: backends.cudnn_sdp_enabled(),
    }
    return tuple(kernel for kernel in _order() if is_on[kernel])


def _is_ordered() -> bool:
    """Return whether the script decides where cuDNN comes."""
    return _order() != _DEFAULT_ORDER or "TORCH_CUDNN_SDPA_DEPRIORITIZED" in os.environ


def _order() -> tuple[_Kernel, ...]:
    if not hasattr(torch._C, "_get_sdp_priority_order"):  # before torch 2.6
        return _DEFAULT_ORDER
    # Before torch 2.7, the last number is not set.
    return tuple(_KERNELS[number] for number in torch._C._get_sdp_priority_order()[: len(_KERNELS)])


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
