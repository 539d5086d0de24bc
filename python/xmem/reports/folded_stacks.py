"""Bytes at the peak as folded stacks, which programs that draw flame graphs read: ``a;b;c BYTES`` a line."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from xmem.estimate_result import Estimate
from xmem.reports.peak_paths import peak_paths, stack_of

if TYPE_CHECKING:
    from xmem.pipeline import Analysis

_SEPARATORS = str.maketrans({";": ":", "\n": " ", "\r": " "})


def write_folded_stacks(source: Analysis | Estimate, file: IO[bytes]) -> int:
    """Write the bytes at the peak of allocated memory by category, module, operator and source line.

    Args:
        source: An estimate, or all that it rests on.
        file: Where to, in UTF-8.

    Returns:
        The number of stacks.

    Raises:
        ConfigError: An estimate without what is asked for.
    """
    stacks: Counter[str] = Counter()
    for path in peak_paths(source):
        stack = ";".join(frame.translate(_SEPARATORS) for frame in stack_of(path))
        stacks[stack] += path.bytes + path.slack_bytes
    file.writelines(f"{stack} {size}\n".encode() for stack, size in stacks.items())
    return len(stacks)
