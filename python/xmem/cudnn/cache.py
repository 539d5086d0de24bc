"""cuDNN's answers, kept on disk by version of the library, device and problem. Any number of processes may
use the cache at once; where it cannot be used, nothing is kept.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from xmem.files.cache import cache_folder, make_private

Plans = tuple[tuple[int, tuple[int, ...]], ...]
"""Workspace in bytes and numerical notes of each plan, in cuDNN's order; empty where it has none."""

_WAIT_S = 10.0
_AT_ONCE = 500  # parameters of a query


class PlanCache:
    """The plans of one library for one device.

    Args:
        library: What its answers depend on: its version, and nothing else.
        device: Description of the device.
        path: Path of the file; in the `cache_folder` by default.
    """

    def __init__(self, library: str, device: str, path: Path | None = None) -> None:
        self._owner = (library, device)
        self._path = path or cache_folder() / "cudnn.sqlite3"

    def read(self, problems: Iterable[str]) -> dict[str, Plans]:
        """Return what is known about these problems."""
        wanted = list(problems)
        found: dict[str, Plans] = {}
        try:
            with self._open() as database:
                for begin in range(0, len(wanted), _AT_ONCE):
                    some = wanted[begin : begin + _AT_ONCE]
                    rows = database.execute(
                        "SELECT problem, plans FROM plans WHERE library = ? AND device = ? AND problem IN "
                        f"({','.join('?' * len(some))})",
                        (*self._owner, *some),
                    )
                    found |= {problem: parse_plans(json.loads(plans)) for problem, plans in rows}
        except (OSError, sqlite3.Error, ValueError, TypeError):
            return {}
        return found

    def write(self, plans: Mapping[str, Plans]) -> None:
        """Keep these plans."""
        rows = [(*self._owner, problem, json.dumps(said)) for problem, said in plans.items()]
        try:
            with self._open() as database, database:
                database.executemany("INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?)", rows)
        except (OSError, sqlite3.Error):
            return

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        make_private(self._path.parent)
        with closing(sqlite3.connect(self._path, timeout=_WAIT_S)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS plans (library TEXT, device TEXT, problem TEXT, plans TEXT, "
                "PRIMARY KEY (library, device, problem)) WITHOUT ROWID"
            )
            yield database


def parse_plans(said: object) -> Plans:
    """Parse plans as JSON holds them.

    Raises:
        ValueError: It does not hold plans.
    """
    if not isinstance(said, list):
        raise ValueError("not a list of plans")
    plans = []
    for plan in said:
        if not (isinstance(plan, list) and len(plan) == 2 and isinstance(plan[1], list)):
            raise ValueError(f"not a plan: {plan!r}")
        workspace, notes = plan
        if not all(type(number) is int for number in (workspace, *notes)) or workspace < 0:
            raise ValueError(f"not a plan: {plan!r}")
        plans.append((workspace, tuple(notes)))
    return tuple(plans)
