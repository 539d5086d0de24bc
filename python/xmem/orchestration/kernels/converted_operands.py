"""Operands of arithmetic that the CPU brings to one dtype and CUDA reads as they are."""

from __future__ import annotations

import numpy as np

from xmem.run.recorded import Context
from xmem.run.workload import MADE_BY_POLICY, Workload

_NAMES = """
    add sub rsub mul div true_divide floor_divide remainder fmod pow lerp addcmul addcdiv
    eq ne lt le gt ge maximum minimum clamp_min clamp_max atan2 hypot
    bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor
""".split()  # noqa: SIM905 - reads better than a column
_ARITHMETIC = frozenset(f"aten::{name}{suffix}" for name in _NAMES for suffix in ("", "_"))
_CONVERSIONS = frozenset({"aten::to", "aten::_to_copy"})
# Its hooks are no operators: DDP's divides each gradient by the number of ranks (reducer.cpp).
_HOOKED = frozenset({"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"})
_NUMBER_BYTES = 16  # of a complex number in double precision, the largest that Python has


class DropConvertedOperands:
    """A Python number that takes part in arithmetic is a tensor of one element in host memory, and stays
    there; operands of another dtype are converted inside CUDA's kernel.

    Source: `aten/src/ATen/TensorIterator.cpp`, `compute_types`: temporaries in the common dtype are made
    where the common device is the CPU; `aten/src/ATen/ScalarOps.cpp`, `wrapped_scalar_tensor`: on the CPU.
    The profiler shows numbers as blocks of at most 16 bytes that no operator makes, or that an arithmetic
    operator makes for itself and frees (`_foreach_*` with a number, for each tensor).
    """

    name = "drop_converted_operands"
    description = "numbers and operands of another dtype are not copied to take part in arithmetic"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop numbers, and conversions that die with the operation."""
        operators, events = context.operators, context.trace.events
        operator = workload.operator
        arithmetic = operators.enclosing(operator, operators.rows_named(_ARITHMETIC))
        conversion = operators.enclosing(operator, operators.rows_named(_CONVERSIONS))
        used_up = (arithmetic >= 0) & (workload.free_ns <= events.end_ns[arithmetic])
        converted = (conversion >= 0) & (events.begin_ns[conversion] >= events.begin_ns[arithmetic])
        number = workload.size_bytes <= _NUMBER_BYTES
        nameless = (workload.block != MADE_BY_POLICY) & (workload.tensor < 0)
        hooked = (operator >= 0) & operators.rows_named(_HOOKED)[operator]
        made_by_nobody = number & nameless & ((operator < 0) | hooked)
        operand = used_up & (converted | (number & (operator == arithmetic)))
        return workload.select(~np.logical_or(made_by_nobody, operand))
