"""The memory of the host while a command runs: what its processes held, and whether the system killed one."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from xmem.records import dataclass
from xmem.text.units import format_bytes

_PERIOD_S = 0.5
# A process that was killed while less than this was left was killed for lack of memory.
_SHARE_LEFT = 0.03
_KILLED_STATUSES = (-9, 137)
_KILLED = re.compile(r"SIGKILL|[Ss]ignal 9\b|exitcode *: *-9\b|exit code -9\b")
_NOT_ALLOCATED = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|^MemoryError", re.MULTILINE
)


@dataclass(frozen=True)
class HostMemory:
    """Host memory while a command ran, in bytes.

    Attributes:
        peak_bytes: The most that the processes of its session held at once, shared pages counted in each.
        least_available_bytes: The least that could still be allocated, by the machine or its control group.
        limit_bytes: Memory of the machine, or of the control group where that is less.
        killed: Processes that the system ended meanwhile for lack of memory.
    """

    peak_bytes: int
    least_available_bytes: int
    limit_bytes: int
    killed: int

    def lack(self, exit_status: int | None, last_output: str) -> str | None:
        """Say that a command ended for lack of host memory, and what to do; None if nothing indicates it.

        Args:
            exit_status: Status of the command, which may be a launcher that lost a process.
            last_output: What it printed last.
        """
        if exit_status in (0, None):
            return None
        was_killed = exit_status in _KILLED_STATUSES or bool(_KILLED.search(last_output))
        was_full = self.killed > 0 or self.least_available_bytes < _SHARE_LEFT * self.limit_bytes
        if not (was_killed and was_full) and not _NOT_ALLOCATED.search(last_output):
            return None
        return (
            "the machine ran out of host memory: the script's processes held "
            f"{format_bytes(self.peak_bytes)} of it, and {format_bytes(self.least_available_bytes)} of "
            f"{format_bytes(self.limit_bytes)} were left; tensors of a phantom GPU take none, so load less "
            "data, use fewer processes and DataLoader workers, or a machine with more memory"
        )


class HostMemoryWatch:
    """Samples the memory of a session of processes until it is stopped.

    Args:
        session: The number of the process that leads it.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._peak_bytes = 0
        self._limit_bytes, self._least_bytes = _limit_and_available()
        self._killed_before = _killed()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xmem-host-memory", daemon=True)
        if self._limit_bytes > 0:
            self._thread.start()

    def stop(self) -> HostMemory | None:
        """Stop sampling and return what was seen; None if the system does not tell."""
        if self._limit_bytes <= 0:
            return None
        self._stopped.set()
        self._thread.join()
        killed = max(_killed() - self._killed_before, 0)
        return HostMemory(self._peak_bytes, self._least_bytes, self._limit_bytes, killed)

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD_S):
            self._peak_bytes = max(self._peak_bytes, _resident_bytes(self._session))
            self._least_bytes = min(self._least_bytes, _limit_and_available()[1])


def _resident_bytes(session: int) -> int:
    """Return the resident memory of all processes of a session."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session, ..., resident pages.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found += int(fields[21]) * page_bytes
    return found


def _limit_and_available() -> tuple[int, int]:
    """Return the values of the machine, or of the control group where less of that is left; (0, 0) if
    unknown."""
    found = list(_limits())
    return min(found, key=lambda limit: limit[1], default=(0, 0))


def _limits() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        yield _kib(lines["MemTotal"]), _kib(lines["MemAvailable"])
    for folder in _groups():
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # there is no limit: "max"
                limit = int((folder / most).read_text())
                held = int((folder / used).read_text()) - _cached_bytes(folder)
                yield limit, max(limit - held, 0)


def _cached_bytes(folder: Path) -> int:
    """Return a control group's pages of files, which the system drops before it kills."""
    with contextlib.suppress(OSError, ValueError):
        lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(lines.get("inactive_file", 0)) + int(lines.get("active_file", 0))
    return 0


def _killed() -> int:
    """Count the processes ever ended for lack of memory, in our control group or else on the machine."""
    for folder in _groups():
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                if found := re.search(r"^oom_kill (\d+)", (folder / name).read_text(), re.MULTILINE):
                    return int(found[1])
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def _groups() -> list[Path]:
    """Return the folders of our control group for memory, of both versions; in a container its root."""
    root = Path("/sys/fs/cgroup")
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                base = root / controllers
                found += [folder for folder in (base / path.lstrip("/"), base) if folder.is_dir()]
    return found


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024
