"""What a measurement was made on, so that its figures can be understood later."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "xmem-fast", "numpy", "isal", "zstandard", "pysimdjson", "orjson", "ijson", "polars", "pandas",
    "HolisticTraceAnalysis",
)  # fmt: skip


def describe_machine(build_folder: Path) -> dict[str, object]:
    """The machine and the versions of everything that was measured, as plain JSON."""
    return {
        "cpu": _first_match(Path("/proc/cpuinfo"), r"model name\s*:\s*(.*)") or platform.processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": _first_match(Path("/etc/os-release"), r'PRETTY_NAME="(.*)"') or platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": _compiler(build_folder),
        "packages": {package: _version(package) for package in PACKAGES},
    }


def _first_match(path: Path, pattern: str) -> str | None:
    if not path.exists():
        return None
    found = re.search(pattern, path.read_text())
    return found[1] if found else None


def _compiler(build_folder: Path) -> str | None:
    cache = build_folder / "CMakeCache.txt"
    compiler = _first_match(cache, r"CMAKE_CXX_COMPILER:\w+=(.*)")
    if compiler is None:
        return None
    return subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
