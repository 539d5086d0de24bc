"""Captures on disk, each under everything that it depends on, so that a run that was cut short goes on.

A capture is two files of one name: NAME.json says how it went, NAME.trace.json.gz is its trace, where there
is one. The name ends in a digest of the sources that decide what a trace holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from xmem.errors import TraceError

Outcome = Literal["captured", "out_of_memory", "failed", "skipped"]


@dataclass(frozen=True)
class Record:
    """How a capture went.

    Attributes:
        outcome: ``out_of_memory`` says that the job itself failed so on a phantom GPU of its size;
            ``skipped`` that it would take or took too long or too much memory.
        seconds: How long it ran.
        peak_reserved_bytes: What PyTorch's own allocator held at most on a phantom GPU; -1 elsewhere.
        note: What went wrong.
    """

    outcome: Outcome
    seconds: float
    peak_reserved_bytes: int = -1
    note: str = ""


@dataclass(frozen=True)
class Key:
    """The name of a capture.

    Attributes:
        subject: What was run and where.
        version: Digest of the sources that decide what its trace holds.
    """

    subject: str
    version: str

    def __str__(self) -> str:
        return f"{re.sub('[^A-Za-z0-9.+_-]', '_', self.subject)}.{self.version}"


@dataclass(frozen=True)
class Cache:
    """A folder of captures.

    Attributes:
        folder: Made when something is put there.
        stale: Whether a capture of other sources will do where there is none of these.
    """

    folder: Path
    stale: bool = False

    def trace(self, key: Key) -> Path:
        """Where the trace lies or is to lie."""
        return self.folder / f"{key}.trace.json.gz"

    def find(self, key: Key) -> tuple[Key, Record] | None:
        """The capture of this name; with ``stale`` else the latest one of the same subject.

        Raises:
            TraceError: A record cannot be read.
        """
        for known in self._candidates(key):
            path = self._record(known)
            if path.exists():
                return known, _read(path)
        return None

    def put(self, key: Key, record: Record) -> None:
        """Note how a capture went; its trace is there by then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._record(key)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record), indent=1) + "\n")
        partial.replace(path)

    def _record(self, key: Key) -> Path:
        return self.folder / f"{key}.json"

    def _candidates(self, key: Key) -> Iterable[Key]:
        yield key
        if self.stale:
            beginning = str(Key(key.subject, ""))
            name = re.compile(re.escape(beginning) + r"([0-9a-f]+)\.json")
            found = [(path, name.fullmatch(path.name)) for path in self.folder.glob(f"{beginning}*.json")]
            others = [(path.stat().st_mtime, match[1]) for path, match in found if match]
            yield from (Key(key.subject, version) for _, version in sorted(others, reverse=True))


def digest(*sources: Path | str) -> str:
    """Eight hexadecimal digits of texts, files, and the Python files below folders."""
    whole = hashlib.sha256()
    for source in sources:
        if isinstance(source, str):
            whole.update(source.encode())
        elif source.is_dir():
            for path in sorted(source.rglob("*.py")):
                whole.update(path.relative_to(source).as_posix().encode() + path.read_bytes())
        else:
            whole.update(source.read_bytes())
    return whole.hexdigest()[:8]


def _read(path: Path) -> Record:
    try:
        fields = json.loads(path.read_text())
        record = Record(**fields)
    except (OSError, ValueError, TypeError) as error:
        raise TraceError(
            f"not a record of a capture ({error}); delete it and capture again", str(path)
        ) from error
    if record.outcome not in get_args(Outcome):
        raise TraceError(f"the outcome {record.outcome!r} is unknown; delete it and capture again", str(path))
    return record
