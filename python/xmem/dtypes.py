"""Types of elements: PyTorch's name, that of the profiler, and bytes per element."""

from __future__ import annotations

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes per element by PyTorch's names."""

OF_PROFILER = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
"""PyTorch's names by the profiler's in `Input type`; lists and scalars have others."""

FLOATS = frozenset({"double", "float", "c10::Half", "c10::BFloat16"})
"""The types among these that models compute in."""


def item_bytes(of_profiler: str) -> int | None:
    """Return the bytes per element of a type as the profiler writes it; None if it is not a tensor's."""
    name = OF_PROFILER.get(of_profiler)
    return None if name is None else ITEM_BYTES[name]
