"""Bytes in and out of text: ``24GiB`` and ``24GB`` are both read, and differ; output is IEC."""

from __future__ import annotations

import re

from xmem.errors import ConfigError

_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGTP", start=1):
    _UNITS[f"{_prefix}IB"] = 1024**_power
    _UNITS[f"{_prefix}B"] = 1000**_power
    _UNITS[_prefix] = 1024**_power

MOST_BYTES = 1 << 60
"""More than any device or job has; sums of such sizes still fit 64 bits."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as ``11.5GiB``, ``24GB`` or ``1048576``.

    Raises:
        ConfigError: The text is not a positive number with an optional unit, or is above ``MOST_BYTES``.
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].upper())
    if match is None or unit is None or float(match[1]) <= 0:
        raise ConfigError(f"{text!r} is not a size", "write it like 11.5GiB, 24GB or 8000000000")
    size = float(match[1]) * unit
    if size > MOST_BYTES:
        raise ConfigError(f"{text!r} is more memory than any machine has", "write it like 11.5GiB or 24GB")
    return round(size)


def format_bytes(size_bytes: int) -> str:
    """Write a size in IEC units with three significant figures or more: ``7.93 GiB``, ``512 B``."""
    magnitude = abs(size_bytes)
    for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if magnitude >= 1024**power:
            return f"{size_bytes / 1024**power:.2f} {prefix}B"
    return f"{size_bytes} B"


def format_change(size_bytes: int) -> str:
    """Write a change of size with its sign: ``+512.00 MiB``."""
    return f"{'+' if size_bytes > 0 else ''}{format_bytes(size_bytes)}"
