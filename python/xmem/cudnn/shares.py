"""Workspaces for when no cuDNN can be asked: typical shares of the bytes that a convolution reads and writes.

The table ``data/convolution_shares.toml`` holds what versions of cuDNN report for common layers. Most engines
with tensor cores first bring the input, the output or both into another order where tensors are contiguous:
shares lie near 0, 0.5 and 1.
"""

from __future__ import annotations

import tomllib
from functools import cache
from math import prod
from typing import cast

from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem
from xmem.dtypes import ITEM_BYTES
from xmem.files.package_data import read_data

_TENSOR_CORES = ("float16", "bfloat16")


def kind_of(problem: ConvolutionProblem) -> str:
    """Return what the share depends on, besides the architecture: a key of the table."""
    is_pointwise = set(problem.w[2:]) == {1}
    shape = "grouped" if problem.x[1] != problem.w[1] else "1x1" if is_pointwise else "wide"
    dtype = "float16" if problem.dtype in _TENSOR_CORES else "float32"
    layout = "channels_last" if problem.channels_last else "contiguous"
    return f"{problem.operation} {shape} {dtype} {layout}"


def tensor_bytes(problem: ConvolutionProblem) -> int:
    """Return the bytes of input, filter and output."""
    return ITEM_BYTES[problem.dtype] * sum(map(prod, (problem.x, problem.w, problem.y)))


def typical_sizes(
    problem: ConvolutionProblem, compute_capability: tuple[int, int], settings: PlannerSettings
) -> tuple[int, ...]:
    """Return the typical workspace in bytes, then the most and the least; engines without tensor cores need
    none.

    An architecture that the table lacks is treated like the last one before it.
    """
    single = problem.dtype not in _TENSOR_CORES
    if problem.dtype == "float64" or (single and not settings.allow_tf32):
        return (0,)
    known = _shares()
    nearest = max((key for key in known if key <= compute_capability), default=min(known))
    least, median, most = known[nearest].get(kind_of(problem), (0.0, 0.0, 0.0))
    size = tensor_bytes(problem)
    return tuple(dict.fromkeys(int(share * size) for share in (median, most, least)))


@cache
def _shares() -> dict[tuple[int, int], dict[str, tuple[float, float, float]]]:
    text = read_data("convolution_shares.toml")
    found = {}
    for capability, shares in tomllib.loads(text).items():
        major, minor = map(int, capability.split("."))
        found[major, minor] = cast(dict[str, tuple[float, float, float]], shares)
    return found
