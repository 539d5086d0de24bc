"""Places in the user's code, relative to the folder that the command runs in."""

from __future__ import annotations

from pathlib import Path

from xmem.gate.judge import Finding
from xmem.records import dataclass


@dataclass(frozen=True)
class Place:
    """A line of a file below the current folder.

    Attributes:
        path: Relative path with forward slashes.
        line: Line number, from 1.
    """

    path: str
    line: int


def place_of(finding: Finding, source: str) -> Place | None:
    """Return where to show a finding: the line that holds or added most, else the file or script judged.

    Args:
        finding: The finding.
        source: The file or the command that was judged.

    Returns:
        None when neither is a file below the current folder: other people's code cannot be marked.
    """
    if finding.place is not None and (line := _below(*finding.place)) is not None:
        return line
    candidates = (_below(part, 1) for part in (source, *source.split()))
    return next((place for place in candidates if place is not None), None)


def _below(path: str, line: int) -> Place | None:
    folder = Path.cwd()
    file = folder / path
    try:
        relative = file.resolve().relative_to(folder.resolve())
        return Place(relative.as_posix(), line) if file.is_file() else None
    except (ValueError, OSError):
        return None
