"""Computes operations, with tensors of PyTorch for the values of instances (of shape (instances, *block)).

Integers have no sign in TTIR: they are kept as signed, and operations that take them as unsigned go through
64 bits. Sums may round differently than on a GPU, which adds in another order.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from .. import host_tensors
from .program import Operation, Type, UnsupportedError, pointed_to

_TYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "ptr": torch.int64,
    "index": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def dtype_of(kind: Type | None) -> torch.dtype:
    """Return the dtype of PyTorch that stands for a type.

    Raises:
        UnsupportedError: There is none.
    """
    found = None if kind is None else _TYPES.get(kind.element)
    if found is None:
        raise UnsupportedError(f"type {kind}")
    return found


def _constant(operation: Operation) -> torch.Tensor:
    text = operation.text.strip()
    if operation.result_type is None and text in ("true", "false"):  # printed without a type
        return host_tensors.tensor([text == "true"])
    dtype = dtype_of(operation.result_type)
    if found := re.fullmatch(r"dense<([^<>\[\]]*)>", text):
        text = found[1]
    if text in ("true", "false"):
        number: Any = text == "true"
    elif text.startswith("0x"):
        bits = int(text, 16)
        if not dtype.is_floating_point:
            raise UnsupportedError(text)
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        limit = 1 << (8 * dtype.itemsize - 1)
        signed = bits - 2 * limit if bits >= limit else bits
        return _shaped(operation, host_tensors.tensor([signed], dtype=whole).view(dtype))
    else:
        try:
            number = float(text) if dtype.is_floating_point else int(text)
        except ValueError as error:  # a list of numbers
            raise UnsupportedError(text) from error
    return _shaped(operation, host_tensors.tensor([number], dtype=dtype))


def _shaped(operation: Operation, value: torch.Tensor) -> torch.Tensor:
    shape = _shape(operation)
    if value.dim() == 1:  # a number for each instance
        value = value.reshape(-1, *(1 for _ in shape))
    return value.expand(-1, *shape)


def _shape(operation: Operation) -> tuple[int, ...]:
    if operation.result_type is None:
        raise UnsupportedError(operation.name)
    return operation.result_type.shape


def _unsigned(value: torch.Tensor) -> torch.Tensor:
    """Return integers as unsigned, in 64 bits."""
    if value.dtype is torch.bool:
        return value.long()
    if value.dtype is torch.int64:
        if bool((value < 0).any()):
            raise UnsupportedError("64 bits without sign")
        return value
    return value.long() & ((1 << (8 * value.dtype.itemsize)) - 1)


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _of_unsigned(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda a, b: function(_unsigned(a), _unsigned(b)).to(a.dtype)


def _multiply_high(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.int64:
        raise UnsupportedError("64 bits")
    a, b = _unsigned(a), _unsigned(b)
    low = a * (b & 0xFFFF)
    return ((a * (b >> 16) + (low >> 16)) >> 16).to(torch.int32)


def _as_deep(condition: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a condition with the dimensions of a block, where it is one for each instance."""
    return condition.reshape(*condition.shape, *(1 for _ in range(value.dim() - condition.dim())))


_Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_BINARY: dict[str, _Binary] = {
    "arith.addi": torch.add,
    "arith.subi": torch.sub,
    "arith.muli": torch.mul,
    "arith.divsi": _divide,
    "arith.remsi": torch.fmod,
    "arith.divui": _of_unsigned(_divide),
    "arith.remui": _of_unsigned(torch.fmod),
    "arith.minsi": torch.minimum,
    "arith.maxsi": torch.maximum,
    "arith.minui": _of_unsigned(torch.minimum),
    "arith.maxui": _of_unsigned(torch.maximum),
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.shli": torch.bitwise_left_shift,
    "arith.shrsi": torch.bitwise_right_shift,
    "arith.shrui": _of_unsigned(torch.bitwise_right_shift),
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "tt.mulhiui": _multiply_high,
    "tt.precise_divf": torch.div,
}
_OF_OPERANDS: dict[str, Callable[..., torch.Tensor]] = {
    "arith.select": lambda condition, a, b: torch.where(_as_deep(condition, a), a, b),
    "math.fma": lambda a, b, c: a * b + c,
    "tt.clampf": torch.clamp,
    "tt.unsplat": lambda value: value.reshape(-1),
    "tt.cat": lambda *values: torch.cat(torch.broadcast_tensors(*values), 1),
    "tt.join": lambda *values: torch.stack(torch.broadcast_tensors(*values), -1),
    "tt.dot": lambda a, b, start: a.to(start.dtype) @ b.to(start.dtype) + start,
    "arith.negf": torch.neg,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.absf": torch.abs,
    "math.absi": torch.abs,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.erf": torch.erf,
    "math.tanh": torch.tanh,
    "tt.precise_sqrt": torch.sqrt,
}
_CASTS = frozenset(
    {
        "arith.extsi",
        "arith.trunci",
        "arith.index_cast",
        "arith.sitofp",
        "arith.fptosi",
        "arith.extf",
        "arith.truncf",
        "tt.fp_to_fp",
    }
)
_UNSIGNED_CASTS = frozenset({"arith.extui", "arith.uitofp", "arith.index_castui"})
_NOT_OF_BOOL = frozenset(_BINARY) - {"arith.andi", "arith.ori", "arith.xori"}
_COMPARE: dict[str, _Binary] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def compute(operation: Operation, operands: list[torch.Tensor]) -> torch.Tensor:
    """Return the result of an operation that only computes.

    Raises:
        UnsupportedError: It is not one of those that are done on the host.
    """
    name = operation.name
    if operands and operands[0].dtype is torch.bool and name in _NOT_OF_BOOL:
        raise UnsupportedError(f"{name} of one bit")
    if binary := _BINARY.get(name):
        return binary(operands[0], operands[1]).to(operands[0].dtype)
    if of_operands := _OF_OPERANDS.get(name):
        return of_operands(*operands)
    if name in _CASTS:
        return _cast(name, operands[0], dtype_of(operation.result_type))
    if name in _UNSIGNED_CASTS:
        return _unsigned(operands[0]).to(dtype_of(operation.result_type))
    of_operation = _OF_OPERATION.get(name)
    if of_operation is None:
        raise UnsupportedError(name)
    return of_operation(operation, *operands)


def _cast(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if value.dtype is torch.bool and name in ("arith.extsi", "arith.sitofp"):
        return -value.to(dtype)  # true is the sign's bit
    if name == "arith.trunci" and dtype is torch.bool:
        return (value & 1).bool()
    return value.to(dtype)


def _compared(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    kind = operation.text.partition(",")[0].strip()
    first, second = operands
    if kind in ("eq", "ne"):
        return _COMPARE[kind](first, second)
    if operation.name == "arith.cmpi":
        if kind[0] == "u":
            return _COMPARE[kind[1:]](_unsigned(first), _unsigned(second))
        if first.dtype is torch.bool:
            raise UnsupportedError("order of one bit")
        return _COMPARE[kind[1:]](first, second)
    compare = _COMPARE.get(kind[1:])
    if compare is None:
        raise UnsupportedError(kind)
    unordered = first.isnan() | second.isnan()
    return compare(first, second) | unordered if kind[0] == "u" else compare(first, second) & ~unordered


def _address(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    size = dtype_of(pointed_to(operation)).itemsize
    return operands[0] + operands[1].long() * size


def _bitcast(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    return operands[0].contiguous().view(dtype_of(operation.result_type))


def _histogram(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    bins = _shape(operation)[0]
    chosen = operands[0].long()
    counted = (chosen >= 0) & (chosen < bins)
    if len(operands) > 1:
        chosen, counted, mask = torch.broadcast_tensors(chosen, counted, operands[1])
        counted = counted & mask
    instances = chosen.size(0)
    places = chosen + bins * host_tensors.arange(instances).unsqueeze(1)
    counts = torch.bincount(places[counted], minlength=instances * bins)
    return counts.view(instances, bins).to(dtype_of(operation.result_type))


def _gather(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    value, places = operands
    instances = max(value.size(0), places.size(0))
    value, places = (each.expand(instances, *each.shape[1:]) for each in (value, places))
    return value.gather(_axis(operation), places.long())


def _axis(operation: Operation) -> int:
    return int(operation.attributes["axis"]) + 1  # after that of the instances


def _order(operation: Operation) -> list[int]:
    numbers = re.findall(r"\d+", operation.attributes["order"].partition(":")[2])
    return [0, *(int(number) + 1 for number in numbers)]


def _range(operation: Operation) -> torch.Tensor:
    first, end = (int(operation.attributes[name]) for name in ("start", "end"))
    return host_tensors.arange(first, end, dtype=torch.int32).unsqueeze(0)


_OF_OPERATION: dict[str, Callable[..., torch.Tensor]] = {
    "arith.constant": _constant,
    "arith.cmpi": _compared,
    "arith.cmpf": _compared,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "tt.make_range": _range,
    "tt.splat": _shaped,
    "tt.broadcast": _shaped,
    "tt.expand_dims": lambda operation, value: value.unsqueeze(_axis(operation)),
    "tt.reshape": lambda operation, value: value.reshape(-1, *_shape(operation)),
    "tt.trans": lambda operation, value: value.permute(_order(operation)),
    "tt.gather": _gather,
    "tt.addptr": _address,
    "tt.histogram": _histogram,
}
