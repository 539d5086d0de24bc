"""Finished rows in an SQLite database, from which a sweep resumes however it was stopped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xmem.errors import ConfigError, SweepError
from xmem.files.cache import make_private
from xmem.sweep.evaluate import Finished
from xmem.sweep.outcome import ConfigurationOutcome

_TABLES = """
create table if not exists sweep (identity text not null);
create table if not exists outcomes (configuration integer primary key, outcome text not null) without rowid;
"""


class Store:
    """The finished rows of one sweep. Use as a context manager."""

    def __init__(self, path: Path, identity: str) -> None:
        """Open the rows of a sweep, or create them.

        Args:
            path: The database.
            identity: Digest of everything that the rows depend on; rows of another one are not reused.

        Raises:
            ConfigError: The rows are those of another sweep.
            SweepError: The database cannot be used.
        """
        self.path = path
        with self._explained():
            make_private(path.parent)
            self._database = sqlite3.connect(path)
        try:
            with self._explained():
                self._database.execute("pragma journal_mode = wal")
                self._database.executescript(_TABLES)
                self._own(identity)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._database.close()

    def finished(self) -> set[int]:
        """Return the numbers of the configurations that have a row."""
        with self._explained():
            return {number for (number,) in self._database.execute("select configuration from outcomes")}

    def add(self, rows: Finished) -> None:
        """Store rows, all or none of them.

        Raises:
            SweepError: They cannot be written.
        """
        with self._explained(), self._database:
            self._database.executemany(
                "insert or replace into outcomes values (?, ?)",
                [(number, json.dumps(outcome.columns())) for number, outcome in rows],
            )

    def outcomes(self) -> Iterator[tuple[int, ConfigurationOutcome]]:
        """Return all rows, by number."""
        with self._explained():
            for number, text in self._database.execute(
                "select configuration, outcome from outcomes order by configuration"
            ):
                yield number, ConfigurationOutcome(**json.loads(text))

    def _own(self, identity: str) -> None:
        with self._database:
            # Of two sweeps that begin at once, the second waits here and then finds the first one's.
            self._database.execute("begin immediate")
            row = self._database.execute("select identity from sweep").fetchone()
            if row is None:
                self._database.execute("insert into sweep values (?)", (identity,))
            elif row[0] != identity:
                raise ConfigError(
                    f"{self.path} holds an earlier sweep with another spec, job or version of xmem-fast",
                    "pass --fresh to begin again",
                )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise SweepError(
                f"{self.path} cannot be used: {error}; check the folder and its free space"
            ) from error
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            raise SweepError(
                f"{self.path} is damaged ({error}); pass --fresh to begin the sweep again"
            ) from error
        except OSError as error:
            raise SweepError(f"{self.path} cannot be written: {error.strerror}; check the path") from error


def forget(paths: Iterable[Path]) -> None:
    """Remove databases with the files that SQLite keeps beside them, and other files.

    Raises:
        SweepError: One cannot be removed.
    """
    for path in paths:
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            try:
                path.with_name(name).unlink(missing_ok=True)
            except OSError as error:
                raise SweepError(f"{path} cannot be removed: {error.strerror}; check the folder") from error
