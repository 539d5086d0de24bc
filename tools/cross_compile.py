"""Compile the core and its tests for macOS and Windows, with the compiler of the ``ziglang`` wheel.

Usage: cross_compile.py [TARGET ...]      by default all: aarch64-macos, x86_64-macos, x86_64-windows-gnu

What is built is in ``build/cross/TARGET``. Exits with 1 where a target does not compile or link.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What CMake calls the system and the processor of a target of the compiler.
TARGETS = {
    "aarch64-macos": ("Darwin", "arm64"),
    "x86_64-macos": ("Darwin", "x86_64"),
    "x86_64-windows-gnu": ("Windows", "AMD64"),
}
# CMake calls each tool by one path.
TOOLS = {
    "cc": "cc -target {target}",
    "c++": "c++ -target {target}",
    "ar": "ar",
    "ranlib": "ranlib",
    "rc": "rc",
}

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME {system})
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {folder}/cc)
set(CMAKE_CXX_COMPILER {folder}/c++)
set(CMAKE_AR {folder}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB {folder}/ranlib CACHE FILEPATH "")
set(CMAKE_RC_COMPILER {folder}/rc)
set(CMAKE_OSX_SYSROOT "" CACHE STRING "")
set(CMAKE_OSX_ARCHITECTURES "" CACHE STRING "")
"""


def write_toolchain(target: str, folder: Path) -> Path:
    """Write the tools of a target and the file that tells CMake of them; return that file."""
    system, processor = TARGETS[target]
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in TOOLS.items():
        tool = folder / name
        call = command.format(target=target)
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {call} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(
        TOOLCHAIN.format(system=system, processor=processor, folder=folder.as_posix()), encoding="utf-8"
    )
    return toolchain


def compiles(target: str) -> bool:
    """Configure and build everything of the core but the bindings for one target."""
    build = ROOT / "build" / "cross" / target
    toolchain = write_toolchain(target, build / "tools")
    options = ["-DXMEM_BUILD_PYTHON=OFF", "-DXMEM_BUILD_TESTS=ON", "-DXMEM_WARNINGS_AS_ERRORS=ON"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"--toolchain={toolchain}"]
    python = f"-DPython_EXECUTABLE={sys.executable}"  # runs here, whatever is built
    for command in ([*configure, python, *options], ["cmake", "--build", str(build)]):
        if subprocess.run(command, check=False).returncode != 0:
            return False
    return True


def main(targets: list[str]) -> int:
    """Build for the targets named, or for all; report each one."""
    if unknown := [target for target in targets if target not in TARGETS]:
        print(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    results = {target: compiles(target) for target in targets or TARGETS}
    for target, good in results.items():
        print(f"{target}: {'compiles' if good else 'does NOT compile'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
