"""Calls of attention for which the script left CUDA another choice of kernels than the default."""

from __future__ import annotations

from array import array
from typing import Any

from ..watching.spans import now_ns


class AttentionChoices:
    """The kernels that are allowed, by the time of a call inside of which that was noted."""

    def __init__(self) -> None:
        self._time_ns = array("q")
        self._kernels: list[str] = []
        self._in_order: list[int] = []

    def note(self, kernels: list[str], in_order: bool) -> None:
        """Note the kernels that the running call may take, and whether it takes the first that fits."""
        self._time_ns.append(now_ns())
        self._kernels.append(",".join(kernels))
        self._in_order.append(int(in_order))

    def columns(self, base_ns: int) -> dict[str, list[Any]]:
        """Return what was noted, with times since ``base_ns``."""
        return {
            "time_ns": [time_ns - base_ns for time_ns in self._time_ns],
            "kernels": self._kernels,
            "in_order": self._in_order,
        }
