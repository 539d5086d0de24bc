"""The results of all visits to one GPU with one torch: a folder of text files, a run a line.

A line is written in one piece once its run is over, so that a visit can be stopped at any moment: at most the
run in progress is lost. A line that a crash cut short is removed when the next visit begins.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xmem_measure.plan import PARTS

# Outcomes that a run would have again; others are tried again in the next visit.
_FINAL = ("done", "out_of_memory")


def folder_name(gpu: str, torch_version: str) -> str:
    """Such as ``nvidia-h200-torch2.11.0``."""
    gpu = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"{gpu}-torch{torch_version.partition('+')[0]}"


class Store:
    """The folder; made when the first result comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, str] = {}
        for part in PARTS:
            for line in self._whole_lines(self._file(part)):
                record = json.loads(line)
                self.outcomes[record["key"]] = record["outcome"]

    def is_finished(self, key: str) -> bool:
        """Whether an earlier visit has brought this run to an end."""
        return self.outcomes.get(key) in _FINAL

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep a finished run."""
        if "error" in record:
            record = {**record, "error": record["error"].replace(str(Path.home()), "~")}
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._file(record["part"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(descriptor, line)
            while written < len(line):
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.outcomes[record["key"]] = record["outcome"]

    def write(self, name: str, text: str) -> None:
        """A whole file, replaced in one piece."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{name}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / name)

    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.stat().st_size for file in self.folder.glob("*"))

    def _file(self, part: str) -> Path:
        return self.folder / f"{part}.jsonl"

    @staticmethod
    def _whole_lines(path: Path) -> list[bytes]:
        if not path.exists():
            return []
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)
        return content[:whole].splitlines()
