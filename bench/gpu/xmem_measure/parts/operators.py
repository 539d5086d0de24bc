"""Part 3: what each operator allocates, in which order, and what of it dies inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from workloads import Job, prepare, train
from xmem_measure.session import Session

# They make a tensor and do nothing else: what they allocate is their caller's.
_FACTORIES = (
    "aten::empty",
    "aten::new_empty",
    "aten::zeros",
    "aten::new_zeros",
    "aten::full",
    "aten::resize_",
)


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Profile all iterations of a job and make a table of its operators."""
    prepared = prepare(Job(**config), session.scale)
    session.start()
    device = session.meter.device
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
        train(prepared, device)
    rows: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    for event in _owners(profiler.profiler.kineto_results.experimental_event_tree(), device.type):
        row = _row(event, device.type)
        if any(request > 0 for request in row["requests"]):
            rows[repr(row)] += 1
            examples[repr(row)] = row
    return {"flags": flags(), "operators": [{**examples[key], "calls": rows[key]} for key in examples]}


def flags() -> dict[str, Any]:
    """Settings of the process that operators choose their kernels by."""
    return {
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _owners(events: list[Any], device: str) -> Iterator[Any]:
    """The operators that requests belong to: the innermost that does more than hand everything to others."""
    for event in events:
        if not _is_operator(event):
            yield from _owners(event.children, device)
            continue
        operators = [child for child in event.children if _is_operator(child) and _allocates(child, device)]
        hands_on = any(not child.name.startswith(_FACTORIES) for child in operators)
        owns = any(_is_allocation(child, device) for child in event.children)
        if (hands_on and not owns) or not event.name.startswith("aten::"):
            yield from _owners(event.children, device)
        else:
            yield event


def _row(event: Any, device: str) -> dict[str, Any]:
    born: dict[int, int] = {}
    requests: list[int] = []
    allocations = 0
    for fields in _requests(event, device):
        if fields.alloc_size > 0:
            allocations += 1
            born[fields.ptr] = allocations
            requests.append(fields.alloc_size)
        elif fields.ptr in born:
            requests.append(-born.pop(fields.ptr))
    return {
        "name": event.name,
        "inputs": [_input(value) for value in event.extra_fields.inputs],
        "requests": requests,
    }


def _requests(event: Any, device: str) -> Iterator[Any]:
    for child in event.children:
        if _is_allocation(child, device):
            yield child.extra_fields
        else:
            yield from _requests(child, device)


def _is_operator(event: Any) -> bool:
    return hasattr(event.extra_fields, "inputs")


def _is_allocation(event: Any, device: str) -> bool:
    return hasattr(event.extra_fields, "alloc_size") and event.extra_fields.device.type == device


def _allocates(event: Any, device: str) -> bool:
    return any(fields.alloc_size > 0 for fields in _requests(event, device))


def _input(value: Any) -> Any:
    """A tensor as its shape, type and layout; a list of tensors as a list; numbers as they are."""
    if hasattr(value, "sizes"):
        return {"shape": list(value.sizes), "dtype": _dtype(value.dtype), "layout": _layout(value)}
    if isinstance(value, list):
        return [_input(part) for part in value]
    return value if isinstance(value, bool | int | float | str) else None


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _layout(tensor: Any) -> str | list[int]:
    """``contiguous``, ``channels_last``, or the strides of anything else."""
    for name, order in (("contiguous", range(len(tensor.sizes))), ("channels_last", (0, 2, 3, 1))):
        if len(tensor.sizes) == len(order) and _is_dense(tensor, order):
            return name
    return list(tensor.strides)


def _is_dense(tensor: Any, order: Any) -> bool:
    expected = 1
    for dimension in reversed(order):
        if tensor.sizes[dimension] != 1 and tensor.strides[dimension] != expected:
            return False
        expected *= tensor.sizes[dimension]
    return True
