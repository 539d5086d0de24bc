"""Part 7: what every operator of PyTorch requests on the samples that PyTorch itself tests it with.

The samples come from ``torch.testing._internal.common_methods_invocations.op_db``, which is private and
differs between releases: compare rows of the same release only.
"""

from __future__ import annotations

import sys
import time
import types
import unittest
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from unittest import mock

import torch

from xmem_measure.history import Mark, requests_between
from xmem_measure.parts.operators import flags
from xmem_measure.session import Session

_SAMPLES = 12
_SEED = 0
# Several shares have the device at once, and some samples of large sides have more than it holds.
_CAP_BYTES = 6 << 30
# Solvers of many large matrices compute for minutes.
_PATIENCE_S = 2.0
# Sides of the samples: PyTorch has 5, 10 and 20.
_SIDES = {"small": None, "large": {"S": 48, "M": 64, "L": 96, "XS": 16}}


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Run a share of the operators forward and backward, with the allocator recorded."""
    dtype = getattr(torch, config["dtype"])
    operators = _operators()[config["share"] :: config["shares"]]
    session.start()
    meter = session.meter
    meter.limit(_CAP_BYTES)
    meter.start_history()
    marks: list[tuple[Mark, Mark]] = []
    rows: list[dict[str, Any]] = []

    def measured(row: dict[str, Any], call: str, function: Callable[[], object]) -> object:
        before = meter.mark()
        result: object = None
        try:
            result = function()
        except Exception as error:
            row[call] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return None
        marks.append((before, meter.mark()))
        row[call] = len(marks) - 1
        return result

    for operator in operators:
        if dtype not in operator.supported_dtypes("cuda"):
            continue
        backward = dtype in operator.supported_backward_dtypes("cuda") and operator.supports_autograd
        began = time.monotonic()
        for index, sample in _samples(operator, meter.device, dtype, backward, config["sides"]):
            row: dict[str, Any] = {
                "name": operator.formatted_name,
                "sample": index,
                "inputs": sample.summary()[:300],
            }
            rows.append(row)
            torch.manual_seed(_SEED)
            result = measured(row, "forward", lambda o=operator, s=sample: o(s.input, *s.args, **s.kwargs))
            leaf = _differentiable(result) if backward else None
            if leaf is not None:
                measured(row, "backward", lambda a=leaf: a.backward(torch.ones_like(a)))
            del result, leaf
            torch.cuda.synchronize()
            if time.monotonic() - began > _PATIENCE_S:
                break
    requests = requests_between(meter.history(), marks)
    for row in rows:
        for call in ("forward", "backward"):
            if isinstance(row.get(call), int):
                row[call] = requests[row[call]]
    return {"flags": flags(), "samples": rows}


def _operators() -> list[Any]:
    # Imported for test cases that nobody runs here, and rarely installed.
    if "expecttest" not in sys.modules:
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        stub.assert_expected_inline = None  # type: ignore[attr-defined]
        sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _samples(
    operator: Any, device: torch.device, dtype: torch.dtype, backward: bool, sides: str
) -> Iterator[tuple[int, Any]]:
    """The first samples of an operator; those that cannot be made are left out."""
    from torch.testing._internal import common_methods_invocations as module

    changed = _SIDES[sides]
    with mock.patch.multiple(module, **changed) if changed else mock.MagicMock():
        try:
            made = operator.sample_inputs(str(device), dtype, requires_grad=backward)
            yield from islice(enumerate(made), _SAMPLES)
        except Exception:
            return


def _differentiable(result: object) -> torch.Tensor | None:
    """The first result that has a gradient."""
    if isinstance(result, torch.Tensor):
        return result if result.requires_grad and result.layout == torch.strided else None
    if isinstance(result, list | tuple):
        return next((found for part in result if (found := _differentiable(part)) is not None), None)
    return None
