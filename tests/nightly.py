"""Which of a test's cases run with every change, and which only each night."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def most_nightly(values: Iterable[Any], at_once: int = 1) -> list[Any]:
    """Give the parameters of a test: the first ``at_once`` run with every change, the others each night.

    A case that is a tuple is the values of several arguments, as it is for ``parametrize``.
    """
    return [
        value
        if number < at_once
        else pytest.param(*value, marks=pytest.mark.nightly)
        if isinstance(value, tuple)
        else pytest.param(value, marks=pytest.mark.nightly)
        for number, value in enumerate(values)
    ]
