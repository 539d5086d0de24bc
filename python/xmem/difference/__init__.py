"""What changed from one run to another, and which module, line and kind of memory did it (docs/diff.md)."""

from xmem.difference.compare import difference
from xmem.difference.result import (
    BlockChange,
    Cause,
    Difference,
    Instant,
    PathChange,
    Renamed,
    Setting,
    SizeChange,
)

__all__ = [
    "BlockChange",
    "Cause",
    "Difference",
    "Instant",
    "PathChange",
    "Renamed",
    "Setting",
    "SizeChange",
    "difference",
]
