"""Bytes at the peak as folded stacks, the input of flame graph programs: lines ``a;b;c BYTES``."""

from __future__ import annotations

from collections import Counter
from typing import IO, TYPE_CHECKING

from xmem.estimation.estimate import Estimate
from xmem.reports.profiles.peak_paths import peak_paths, stack_of

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_SEPARATORS = str.maketrans({";": ":", "\n": " ", "\r": " "})


def write_folded_stacks(source: Analysis | Estimate, file: IO[bytes]) -> int:
    """Write the bytes at the peak of allocated memory by category, module, operator and source line.

    Args:
        source: An estimate, or an analysis with the data behind it.
        file: File to write to, in UTF-8.

    Returns:
        The number of stacks.

    Raises:
        ConfigError: The estimate lacks the requested data.
    """
    stacks: Counter[str] = Counter()
    for path in peak_paths(source):
        stack = ";".join(frame.translate(_SEPARATORS) for frame in stack_of(path))
        stacks[stack] += path.bytes + path.slack_bytes
    file.writelines(f"{stack} {size}\n".encode() for stack, size in stacks.items())
    return len(stacks)
