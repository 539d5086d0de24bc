"""What CUDA would do with a call of ``scaled_dot_product_attention``, known where it is called.

Upstream: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``attention.cu`` of torch 2.6 to 2.13.
The estimate chooses again, by the same rules, for the GPU that it is about
(``xmem.orchestration.attention.fused_kernels``); what can only be had here is what a call from scores keeps,
and how its result lies.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

_WIDEST = 256  # head that flash computes
_CUDNN_FIRST = (2, 12)  # the first release whose cuDNN is new enough
_LITTLE_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9))


class _Kernel(Enum):
    CUDNN = "cuDNN"
    FLASH = "flash"
    EFFICIENT = "memory-efficient"


def computes_scores(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, dropout: float
) -> bool:
    """Return whether no fused kernel of CUDA takes a call, so that scores are computed and kept."""
    if query.dim() != 4 or 0 in query.shape or 0 in key.shape:
        return False
    return _kernel_of(query, key, value, mask, is_causal, dropout) is None


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
    if any(tensor.size(-1) > 1 and tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return None
    capability, item = torch.cuda.get_device_capability(), query.element_size()
    major, width, value_width = capability[0], query.size(-1), value.size(-1)
    if item == 2 and major in (9, 10) and _release() >= _CUDNN_FIRST and dropout == 0:
        widest = 256 if major == 9 else 128
        if width % 8 == 0 and value_width % 8 == 0 and width <= widest:
            return _Kernel.CUDNN
    if item == 2 and major >= 8 and mask is None and width == value_width and width <= _WIDEST:
        little = capability in _LITTLE_SHARED_MEMORY or major == 12
        too_wide = little and (192 < width <= 224 or (width > 224 and dropout > 0))
        if not too_wide and not (is_causal and query.size(-2) != key.size(-2)):
            return _Kernel.FLASH
    multiple = 8 if item == 2 else 4
    fits = width % multiple == 0 and value_width % multiple == 0
    whole = major >= 8 or query.dtype != torch.bfloat16
    if item <= 4 and fits and whole and query.size(1) == key.size(1):
        return _Kernel.EFFICIENT
    return None


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])
