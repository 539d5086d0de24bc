"""Whether any installed package declares entry points of a group, without reading what each package is.

``importlib.metadata`` imports all of ``email`` (10 ms) and parses the entry points of every package (10 ms
more where 170 are installed): a tenth of a small estimate, for a group that nearly nobody declares. So the
files are only searched for the group's name, and ``importlib.metadata`` is asked where one has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path


def any_declares(group: str) -> bool:
    """Return whether ``importlib.metadata`` may know entry points of this group.

    True where files do not tell: for an archive on ``sys.path``, and for a finder that knows packages from
    elsewhere.
    """
    if any(_knows_packages(finder) for finder in sys.meta_path):
        return True
    name = group.encode()
    for folder in dict.fromkeys(sys.path):
        if Path(folder).is_file():
            return True
        if any(name in text for text in _declarations(folder or ".")):
            return True
    return False


def _knows_packages(finder: object) -> bool:
    # That of the folders on sys.path, which are searched here.
    is_for_folders = getattr(finder, "__module__", "") == "_frozen_importlib_external"
    return not is_for_folders and hasattr(finder, "find_distributions")


def _declarations(folder: str) -> Iterator[bytes]:
    """Yield the declarations of the packages that are installed in a folder."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return  # as importlib.metadata does
    for name in names:
        # EGG-INFO is what a folder of an egg has inside.
        if name.lower().endswith((".dist-info", "egg-info")):
            try:
                yield Path(folder, name, "entry_points.txt").read_bytes()
            except OSError:
                continue  # most packages have none
