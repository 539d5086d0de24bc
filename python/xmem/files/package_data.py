"""The tables that xMem brings, in ``xmem/data``."""

from __future__ import annotations

from pathlib import Path

# By path, not by importlib.resources, which takes 3 ms: a package with libraries is never in an archive.
DATA = Path(__file__).parent.parent / "data"
"""The folder of all tables."""


def read_data(name: str) -> str:
    """Return the text of a table."""
    return (DATA / name).read_text(encoding="utf-8")
