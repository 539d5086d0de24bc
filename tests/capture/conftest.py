"""Captures of the target scripts, each made once and read by many tests."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from xmem.capture import CaptureResult, capture

TARGETS = Path(__file__).parent / "targets"

# On a loaded machine a script may well be silent for so long.
_HEARTBEAT = re.compile(r"^xmem-fast: \d+ s: .*\n", re.MULTILINE)

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@dataclass(frozen=True)
class Block:
    """An allocation of the trace, paired by address; never freed: ``free_ns`` is None."""

    address: int
    size_bytes: int
    alloc_ns: int
    free_ns: int | None

    def live_at(self, time_ns: int) -> bool:
        return self.alloc_ns <= time_ns and (self.free_ns is None or time_ns < self.free_ns)


class Captured:
    """A trace with what was printed, and questions that tests ask of it."""

    def __init__(self, result: CaptureResult, stdout: str, stderr: str) -> None:
        self.result = result
        self.stdout = stdout
        self.stderr = stderr
        opener = gzip.open if result.path.suffix == ".gz" else open
        with opener(result.path, "rt") as file:
            self.trace: dict[str, Any] = json.load(file, parse_float=str)
        self.xmem: dict[str, Any] = self.trace["xmem"]
        self.events: list[dict[str, Any]] = self.trace["traceEvents"]

    def spans(self, category: str) -> list[tuple[str, int, int]]:
        """(name, begin, end) of the spans of a category."""
        return [
            (event["name"], _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"]))
            for event in self.events
            if event.get("cat") == category
        ]

    def operators(self, name: str) -> list[tuple[str, int, int]]:
        return [span for span in self.spans("cpu_op") if span[0] == name]

    @functools.cached_property
    def blocks(self) -> list[Block]:
        memory = [event for event in self.events if event["name"] == "[memory]"]
        memory.sort(key=lambda event: (_ns(event["ts"]), event["args"]["Ev Idx"]))
        live: dict[int, tuple[int, int]] = {}
        blocks = []
        for event in memory:
            time, address, size = _ns(event["ts"]), event["args"]["Addr"], event["args"]["Bytes"]
            if size > 0:
                live[address] = (size, time)
            elif address in live:
                born_size, born = live.pop(address)
                blocks.append(Block(address, born_size, born, time))
        return blocks + [Block(address, size, born, None) for address, (size, born) in live.items()]

    def tensors(self, role: str) -> list[dict[str, Any]]:
        columns = self.xmem["tensors"]
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return [row for row in rows if row["role"] == role]

    def block_of(self, row: dict[str, Any]) -> Block:
        (block,) = [
            block
            for block in self.blocks
            if block.address == row["address"] and block.live_at(row["time_ns"])
        ]
        return block

    def on_host(self, block: Block) -> bool:
        return any(begin <= block.alloc_ns < end for _, begin, end in self.spans("xmem_host"))

    def device_peak(self) -> int:
        """The most bytes that blocks of device memory hold at once."""
        changes = []
        for block in self.blocks:
            if not self.on_host(block):
                changes.append((block.alloc_ns, block.size_bytes))
                if block.free_ns is not None:
                    changes.append((block.free_ns, -block.size_bytes))
        return max(itertools.accumulate(size for _, size in sorted(changes)))


def _ns(microseconds: str | int) -> int:
    whole, _, fraction = str(microseconds).partition(".")
    return int(whole) * 1000 + int(fraction.ljust(3, "0") or 0)


def run_capture(tmp: Path, command: list[str], name: str = "trace.json", **options: Any) -> Captured:
    """Capture in a Python of its own, so that what the script prints can be seen apart."""
    output = tmp / name
    code = (
        "import json, sys; from xmem.capture import DescribedGpu, capture; options = json.loads(sys.argv[1]);"
        "options['gpu'] = DescribedGpu(**options.get('gpu', {}));"
        "result = capture(sys.argv[3:], sys.argv[2], **options);"
        "print('RESULT', json.dumps([result.iterations, result.wall_s, result.exit_status, result.metadata]))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, json.dumps(options), str(output), *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=TARGETS,
    )
    assert finished.returncode == 0, finished.stderr
    stdout, _, line = finished.stdout.rpartition("RESULT ")
    iterations, wall_s, exit_status, metadata = json.loads(line)
    assert [path.name for path in tmp.iterdir()] == [name], "something was left behind"
    stderr = _HEARTBEAT.sub("", finished.stderr)
    return Captured(CaptureResult(output, iterations, wall_s, exit_status, metadata), stdout, stderr)


def shown(path: Path) -> str:
    """A path as traces name it, which leave out the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Captured]:
    """``captured("dcgan.py", "--flag")``: the capture of a target, made at the first call."""

    @functools.cache
    def make(script: str, *arguments: str, **options: Any) -> Captured:
        name = options.pop("name", "trace.json")
        command = [sys.executable, str(TARGETS / script), *arguments]
        return run_capture(tmp_path_factory.mktemp("capture"), command, name, timeout_s=120, **options)

    return make


__all__ = ["TARGETS", "Block", "Captured", "capture", "needs_torch", "run_capture", "shown"]
