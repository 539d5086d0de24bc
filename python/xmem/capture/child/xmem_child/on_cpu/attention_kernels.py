"""What CUDA would do with a call of ``scaled_dot_product_attention``, known where it is called.

Upstream: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``attention.cu`` of torch 2.6 to 2.13.
The estimate chooses again, for the GPU that it is about (``xmem.orchestration.attention.fused_kernels``);
what can only be had here is what a call from scores keeps, and how its result lies.
"""

from __future__ import annotations

import torch

_WIDEST = 256  # head that flash computes


def computes_scores(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> bool:
    """Return whether no fused kernel of CUDA takes a call, so that scores are computed and kept."""
    if query.dim() != 4 or 0 in query.shape or 0 in key.shape:
        return False
    if any(tensor.size(-1) > 1 and tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return True
    if _takes_flash(query, key, value, mask, is_causal):
        return False
    half = query.element_size() == 2
    multiple = 8 if half else 4
    fits = query.size(-1) % multiple == 0 and value.size(-1) % multiple == 0
    grouped = query.size(1) != key.size(1)
    recent = _major() >= 8 or query.dtype != torch.bfloat16
    return not (query.element_size() <= 4 and fits and not grouped and recent)


def result_strides(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> tuple[int, ...]:
    """Return the strides of what a fused kernel returns: flash lays it out as its query, and by heads if it
    pads them; the memory-efficient kernel by position, then by head.
    """
    _, heads, length, _ = query.shape
    width = value.size(-1)
    if _takes_flash(query, key, value, mask, is_causal):
        if width % 8:
            return heads * length * width, length * width, width, 1
        return tuple(torch.empty_like(query, device="meta").stride())
    return length * heads * width, width, heads * width, 1


def _takes_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> bool:
    width = query.size(-1)
    even = not is_causal or query.size(-2) == key.size(-2)
    fits = width == value.size(-1) and width <= _WIDEST
    return mask is None and query.element_size() == 2 and _major() >= 8 and fits and even


def _major() -> int:
    major, _ = torch.cuda.get_device_capability()
    return int(major)
