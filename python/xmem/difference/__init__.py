"""Changes from one run to another, and the module, line and kind of memory that cause them.

``docs/commands/diff.md`` describes them.
"""

from xmem.difference.compare import difference
from xmem.difference.comparison import (
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
