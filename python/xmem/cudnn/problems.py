"""The problems that cuDNN is asked about: one convolution, forward or one of its two gradients."""

from __future__ import annotations

import json
from dataclasses import astuple
from enum import StrEnum

from xmem.records import dataclass


class Operation(StrEnum):
    """cuDNN's three operations; a transposed convolution uses the same ones in other roles."""

    FORWARD = "forward"
    DATA_GRADIENT = "data_gradient"
    FILTER_GRADIENT = "filter_gradient"


@dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution as cuDNN's descriptors express it, with two or three dimensions of space.

    Attributes:
        operation: Forward reads x and w and writes y, the gradients write x and w.
        dtype: Dtype of all tensors: ``float32``, ``float16``, ``bfloat16`` or ``float64``; sums are in
            ``float32``, or ``float64`` for that.
        x: Sizes of the input: batch, channels, space.
        w: Sizes of the filter: outputs, channels per group, space.
        y: Sizes of the output: batch, outputs, space.
        stride: One step per dimension of space.
        padding: One value per dimension of space, on either side.
        dilation: One value per dimension of space.
        channels_last: Whether channels are the innermost dimension of all tensors in memory.
    """

    operation: Operation
    dtype: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    channels_last: bool = False

    def key(self) -> str:
        """A text that is the same only for equal problems; the child process reads it as JSON."""
        return json.dumps(astuple(self), separators=(",", ":"))
