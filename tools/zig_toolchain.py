"""Compilers for other systems, from the ``ziglang`` wheel, as CMake wants to be told of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A system that is compiled for.

    Attributes:
        compiler: What the compiler calls it; after the last dot, the oldest release that it runs on.
        system: What CMake calls the system.
        processor: What CMake calls the processor.
    """

    compiler: str
    system: str
    processor: str


# The oldest glibc is that of manylinux_2_28, which torch needs too (memfd_create came with 2.27); the oldest
# macOS is that of the first arm64 machines.
TARGETS = {
    "linux-x86_64": Target("x86_64-linux-gnu.2.28", "Linux", "x86_64"),
    "linux-aarch64": Target("aarch64-linux-gnu.2.28", "Linux", "aarch64"),
    "macos-arm64": Target("aarch64-macos.11.0", "Darwin", "arm64"),
    "macos-x86_64": Target("x86_64-macos.11.0", "Darwin", "x86_64"),
    "windows-x86_64": Target("x86_64-windows-gnu", "Windows", "AMD64"),
}

# CMake calls each tool by one path.
_TOOLS = {
    "cc": "cc -target {target}",
    "c++": "c++ -target {target}",
    "ar": "ar",
    "ranlib": "ranlib",
    "rc": "rc",
    "dlltool": "dlltool",
}

# The host's own tools must not be found: its strip does not know the other systems' files.
_TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME {system})
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {folder}/cc)
set(CMAKE_CXX_COMPILER {folder}/c++)
set(CMAKE_AR {folder}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB {folder}/ranlib CACHE FILEPATH "")
set(CMAKE_RC_COMPILER {folder}/rc)
set(CMAKE_DLLTOOL {folder}/dlltool CACHE FILEPATH "")
set(CMAKE_STRIP "" CACHE FILEPATH "")
set(CMAKE_OSX_SYSROOT "" CACHE STRING "")
set(CMAKE_OSX_ARCHITECTURES "" CACHE STRING "")
set(CMAKE_PROJECT_INCLUDE {folder}/after_project.cmake)
"""

# Zig's linker crashes over a bundle, which is what CMake makes of a module for macOS. It links a dynamic
# library, which Python loads all the same.
_AFTER_PROJECT = """\
if(APPLE)
  set(CMAKE_SHARED_MODULE_CREATE_C_FLAGS "-shared -Wl,-headerpad_max_install_names")
  set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS "-shared -Wl,-headerpad_max_install_names")
endif()
"""


def write_toolchain(target: Target, folder: Path) -> Path:
    """Write the tools of a target and the file that tells CMake of them into ``folder``; return that file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in _TOOLS.items():
        tool = folder / name
        call = command.format(target=target.compiler)
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {call} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    (folder / "after_project.cmake").write_text(_AFTER_PROJECT, encoding="utf-8")
    toolchain = folder / "toolchain.cmake"
    text = _TOOLCHAIN.format(system=target.system, processor=target.processor, folder=folder.as_posix())
    # A file that changes makes CMake configure again.
    if not toolchain.exists() or toolchain.read_text(encoding="utf-8") != text:
        toolchain.write_text(text, encoding="utf-8")
    return toolchain
