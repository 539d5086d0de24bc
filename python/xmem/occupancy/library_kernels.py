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
from xmem.occupancy.recurrent import ALGORITHMS

_FMA_MATH = 3  # of cudnnMathType_t


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
    predictions: list[Predicted | None] = [None] * len(launches.library_calls)
    asked: dict[Problem, Predicted | None] = {}
    for call in np.unique(launches.library_call[launches.library_call >= 0]).tolist():
        problem = problem_of_call(launches, call)
        if problem is not None:
            if problem not in asked:
                asked[problem] = model.predict(problem, compute_capability, multiprocessors)
            predictions[call] = asked[problem]
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
        rows = np.nonzero(hidden[source] & (columns["library_call"] == call))[0]
        place = position[rows]
        for launch in prediction.launches:
            if launch.kernel.name not in numbers:
                numbers[launch.kernel.name] = len(strings)
                strings.append(launch.kernel.name)
        kernels = [launch.kernel for launch in prediction.launches]
        columns["name"][rows] = np.array([numbers[kernel.name] for kernel in kernels])[place]
        columns["grid"][rows] = 1
        columns["grid"][rows, 0] = np.array([launch.blocks for launch in prediction.launches])[place]
        columns["block"][rows] = 1
        columns["block"][rows, 0] = np.array([kernel.threads for kernel in kernels])[place]
        columns["registers"][rows] = np.array([kernel.registers for kernel in kernels])[place]
        columns["static_shared"][rows] = 0
        columns["dynamic_shared"][rows] = np.array([kernel.shared_bytes for kernel in kernels])[place]
        columns["known"][rows] = int(Known.MODELLED)
        share = np.array([launch.share for launch in prediction.launches])[place]
        lasting = columns["duration_ns"][rows]
        columns["duration_ns"][rows] = np.where(lasting > 0, lasting * share, lasting)
    return replace(launches, strings=tuple(strings), **columns)


def problem_of_call(launches: Launches, call: int) -> Problem | None:
    """Return what a row of ``library_calls`` computes; None where too little of it is known."""
    calls = launches.library_calls
    family = launches.text(int(calls.family[call]))
    function = launches.text(int(calls.function[call]))
    dtypes = tuple(launches.text(int(row)) for row in calls.dtypes[call])
    details = json.loads(launches.text(int(calls.problem[call])) or "{}")
    layout = launches.text(int(calls.layout[call]))
    choice = details.get("engine", "")
    if family in ("gemm", "gemv"):
        m, n, k, batch = (max(int(size), 1) for size in calls.sizes[call])
        if int(calls.sizes[call][0]) == NONE:
            return None
        leading = details.get("leading_dimensions") or _packed(layout, m, n, k)
        product = Product(m, n, k, batch, layout, alignment_of(*(int(size) for size in leading)))
        shapes = ((n, k), (k, m)) if batch == 1 else ((batch, n, k), (batch, k, m))
        # With the tensor cores single precision takes other kernels, which its inputs do not say.
        second = dtypes[3] if dtypes[3] == "tfloat32" else dtypes[1]
        return Problem("aten::mm" if batch == 1 else "aten::bmm", shapes, (dtypes[0], second), (), product)
    if family.startswith("convolution") and {"input", "filter", "output"} <= set(details):
        image, filters, result = (tuple(details[key]) for key in ("input", "filter", "output"))
        # Pointwise ones are plain products, for which cuDNN takes the kernels of cuBLAS.
        pointwise = int(np.prod(filters[2:])) == 1 and image[2:] == result[2:]
        layout = (layout or "nchw") + " pointwise" * pointwise
        product = _of_convolution(family, image, filters, result, layout)
        operator = "aten::cudnn_convolution" if family == "convolution" else family
        return Problem(operator, (image, filters, result), dtypes[:3], (True,) * 3, product, choice)
    if family.startswith("attention") and {"query", "key"} <= set(details):
        return Problem(family, (tuple(details["query"]), tuple(details["key"])), dtypes[:2], (), None, choice)
    if family == "normalization" and "input" in details:
        return Problem(function, (tuple(details["input"]),), dtypes[:1], (layout != "nhwc",))
    if family == "recurrent" and {"input", "cell", "hidden"} <= set(details):
        steps, batch, features = details["input"]
        network = (details["layers"], details["directions"])
        sizes = ((batch, details["hidden"]), (features,), network, (steps,))
        # With the tensor cores single precision takes other kernels, unless the network was told not to.
        second = "tfloat32" if dtypes[0] == "float32" and details.get("math") != _FMA_MATH else dtypes[0]
        algorithm = ALGORITHMS.get(details.get("algorithm", -1), "")
        return Problem(f"{function} {details['cell']}", sizes, (dtypes[0], second), (), None, algorithm)
    return None


def _of_convolution(
    family: str, image: tuple[int, ...], filters: tuple[int, ...], result: tuple[int, ...], layout: str
) -> Product:
    """Return the product that an implicit GEMM computes: of the gradients, too, each with sums of its own."""
    channels_in, channels_out = filters[1], filters[0]
    window, places = int(np.prod(filters[2:])), int(np.prod(result[2:]))
    images, groups = image[0], max(image[1] // filters[1], 1)
    alignment = alignment_of(channels_out, channels_in)
    if layout == "nchw pointwise" and groups == 1:
        # In this layout each image is a product of its own, with the places in the fast dimension.
        sizes = {
            "convolution_data_gradient": (channels_in, places, channels_out),
            "convolution_filter_gradient": (channels_out, channels_in, places),
        }.get(family, (channels_out, places, channels_in))
        batch = images
    else:
        channels_out //= groups
        sizes = {
            "convolution_data_gradient": (
                channels_in,
                images * int(np.prod(image[2:])),
                channels_out * window,
            ),
            "convolution_filter_gradient": (channels_out, channels_in * window, images * places),
        }.get(family, (channels_out, images * places, channels_in * window))
        batch = groups
    m, n, k = (max(size, 1) for size in sizes)
    return Product(m, n, k, batch, layout, alignment)


def _packed(layout: str, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Return the leading dimensions of matrices without gaps, column-major."""
    return (k if layout[:1] == "t" else m, n if layout[1:] == "t" else k, m)
