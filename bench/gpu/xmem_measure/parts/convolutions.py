"""Part 4: the workspace of every convolution of a network, each run alone.

What a convolution's call allocates beside its result, and frees before it returns, is the workspace of the
plan that was taken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from workloads import Job, Scale, prepare
from workloads.training import set_precision
from xmem_measure.history import Mark, requests_between
from xmem_measure.meter import Meter, is_out_of_memory
from xmem_measure.parts.operators import flags
from xmem_measure.session import Session

_CALLS = ("forward", "data_gradient", "filter_gradient")


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution: shapes are NCHW and KCRS."""

    input: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Run each different convolution of a network forward and backward, with the allocator recorded."""
    job = Job(family="cnn", optimizer="SGD", **config)
    convolutions = find(job, session.scale)
    session.start()
    meter = session.meter
    set_precision(job)
    meter.start_history()
    calls: list[tuple[str, str | None, tuple[Mark, Mark]]] = []
    with meter.watching():
        for convolution in convolutions:
            calls += _calls(convolution, job, meter)
    requests = requests_between(meter.history(), [marks for _, _, marks in calls])
    rows = []
    for index, convolution in enumerate(convolutions):
        row: dict[str, Any] = asdict(convolution)
        for offset in range(len(_CALLS)):
            name, error, _ = calls[index * len(_CALLS) + offset]
            row[name] = error if error else requests[index * len(_CALLS) + offset]
        rows.append(row)
    return {"flags": flags(), "convolutions": rows}


def find(job: Job, scale: Scale) -> list[Convolution]:
    """The different convolutions of a network at a batch size, in the order in which they run."""
    prepared = prepare(job, scale)
    found: dict[Convolution, None] = {}

    def note(module: torch.nn.Conv2d, inputs: tuple[torch.Tensor]) -> None:
        padding = module.padding if isinstance(module.padding, tuple) else (0, 0)
        found[
            Convolution(
                input=tuple(inputs[0].shape),
                filter=tuple(module.weight.shape),
                stride=tuple(module.stride),
                padding=padding,
                dilation=tuple(module.dilation),
                groups=module.groups,
                bias=module.bias is not None,
            )
        ] = None

    # On the meta device shapes are computed, and nothing else.
    model = prepared.model.to("meta")
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(prepared.batch[0].to("meta"))
    return list(found)


def _calls(
    convolution: Convolution, job: Job, meter: Meter
) -> list[tuple[str, str | None, tuple[Mark, Mark]]]:
    """The three calls of a convolution: name, error if there was one, and where in the history it lies."""
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    memory_format = torch.channels_last if job.channels_last else torch.contiguous_format

    def tensor(*shape: int) -> torch.Tensor:
        empty = torch.empty(shape, dtype=dtype, device=meter.device)
        return empty.contiguous(memory_format=memory_format) if len(shape) == 4 else empty

    numbers = (
        list(convolution.stride),
        list(convolution.padding),
        list(convolution.dilation),
        False,
        [0, 0],
        convolution.groups,
    )
    aten = torch.ops.aten
    results: list[tuple[str, str | None, tuple[Mark, Mark]]] = []
    images = filters = bias = gradient = None
    for name in _CALLS:
        error = kept = None
        before = meter.mark()
        try:
            if images is None:
                images, filters = tensor(*convolution.input), tensor(*convolution.filter)
                bias = tensor(convolution.filter[0]) if convolution.bias else None
            before = meter.mark()
            if name == "forward":
                kept = gradient = aten.convolution(images, filters, bias, *numbers)
            else:
                mask = [name == "data_gradient", name == "filter_gradient", False]
                sizes = list(bias.shape) if bias is not None else None
                # Alive past the mark: what is freed inside is not a result.
                kept = aten.convolution_backward(gradient, images, filters, sizes, *numbers, mask)
        except RuntimeError as caught:
            if not is_out_of_memory(caught):
                raise
            error = "out_of_memory"
            torch.cuda.empty_cache()
        results.append((name, error, (before, meter.mark())))
        del kept
    return results
