"""Gives the calls of libraries that hide their kernels the kernels that they are expected to launch.

The kernel model (``xmem.occupancy.kernel_model``) says which, from public recordings;
``kernel_data.card`` has its error. What no recording is like stays unknown.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from xmem.occupancy.kernel_data import shipped_model
from xmem.occupancy.kernel_model import KernelModel, Predicted
from xmem.occupancy.launches import NONE, PER_LAUNCH, Known, Launches
from xmem.occupancy.problems import Problem, Product, alignment_of


def with_library_kernels(
    launches: Launches,
    compute_capability: tuple[int, int],
    multiprocessors: int,
    model: KernelModel | None = None,
) -> Launches:
    """Return the launches with a row per kernel of each library call that the model knows.

    Such rows are ``Known.MODELLED`` and keep their row of ``library_calls``, their operator, module and
    stream. Each distinct call is predicted once.

    Args:
        launches: A row per launch or library call.
        compute_capability: Of the GPU.
        multiprocessors: Of the GPU.
        model: What the kernels are taken from; None = what is shipped.
    """
    model = model or shipped_model()
    predictions: list[Predicted | None] = []
    for call in range(len(launches.library_calls)):
        problem = problem_of_call(launches, call)
        predictions.append(
            None if problem is None else model.predict(problem, compute_capability, multiprocessors)
        )
    modelled = [len(prediction.launches) if prediction else 0 for prediction in predictions]
    counts = np.array([*modelled, 0])[launches.library_call]  # the last is for rows without a call
    hidden = (launches.library_call >= 0) & (launches.known == int(Known.UNKNOWN)) & (counts > 0)
    repeats = np.where(hidden, counts, 1)
    source = np.repeat(np.arange(len(launches)), repeats)
    first = np.concatenate([[0], np.cumsum(repeats)])[:-1]
    position = np.arange(len(source)) - first[source]
    columns: dict[str, Any] = {name: getattr(launches, name)[source].copy() for name in PER_LAUNCH}
    strings = list(launches.strings)
    numbers: dict[str, int] = {}
    for call, prediction in enumerate(predictions):
        if not prediction:
            continue
        of_call = hidden[source] & (columns["library_call"] == call)
        for index, launch in enumerate(prediction.launches):
            rows = of_call & (position == index)
            kernel = launch.kernel
            if kernel.name not in numbers:
                numbers[kernel.name] = len(strings)
                strings.append(kernel.name)
            columns["name"][rows] = numbers[kernel.name]
            columns["grid"][rows] = (launch.blocks, 1, 1)
            columns["block"][rows] = (kernel.threads, 1, 1)
            columns["registers"][rows] = kernel.registers
            columns["static_shared"][rows] = 0
            columns["dynamic_shared"][rows] = kernel.shared_bytes
            columns["known"][rows] = int(Known.MODELLED)
            lasting = columns["duration_ns"][rows]
            columns["duration_ns"][rows] = np.where(lasting > 0, lasting * launch.share, lasting)
    return replace(launches, strings=tuple(strings), **columns)


def problem_of_call(launches: Launches, call: int) -> Problem | None:
    """Return what a row of ``library_calls`` computes; None where too little of it is known."""
    calls = launches.library_calls
    family = launches.text(int(calls.family[call]))
    dtypes = tuple(launches.text(int(row)) for row in calls.dtypes[call][:2])
    details = json.loads(launches.text(int(calls.problem[call])) or "{}")
    layout = launches.text(int(calls.layout[call]))
    if family in ("gemm", "gemv"):
        m, n, k, batch = (max(int(size), 1) for size in calls.sizes[call])
        if int(calls.sizes[call][0]) == NONE:
            return None
        leading = details.get("leading_dimensions") or _packed(layout, m, n, k)
        product = Product(m, n, k, batch, layout, alignment_of(*(int(size) for size in leading)))
        shapes = ((n, k), (k, m)) if batch == 1 else ((batch, n, k), (batch, k, m))
        return Problem("aten::mm" if batch == 1 else "aten::bmm", shapes, dtypes, (), product)
    if family == "convolution" and {"input", "filter"} <= set(details):
        image, filters = tuple(details["input"]), tuple(details["filter"])
        places = image[0]
        spatial = len(image) - 2
        paddings = details.get("padding") or [0] * spatial
        strides = details.get("stride") or [1] * spatial
        for length, window, padding, stride in zip(image[2:], filters[2:], paddings, strides, strict=False):
            places *= (length + 2 * padding - window) // max(stride, 1) + 1
        depth = int(np.prod(filters[1:]))
        product = Product(filters[0], max(places, 1), depth, 1, "nchw", alignment_of(*filters[:2]))
        return Problem("aten::cudnn_convolution", (image, filters), dtypes, (True, True), product)
    return None


def _packed(layout: str, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Return the leading dimensions of matrices without gaps, column-major."""
    return (k if layout[:1] == "t" else m, n if layout[1:] == "t" else k, m)
