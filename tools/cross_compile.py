"""Compile the core and its tests for other systems, with the compiler of the ``ziglang`` wheel.

Usage: cross_compile.py [TARGET ...]      by default all that are not Linux on x86-64

What is built is in ``build/cross/TARGET``. Exits with 1 where a target does not compile or link.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from zig_toolchain import TARGETS, write_toolchain

ROOT = Path(__file__).resolve().parent.parent


def compiles(target: str) -> bool:
    """Configure and build everything of the core but the bindings for one target."""
    build = ROOT / "build" / "cross" / target
    toolchain = write_toolchain(TARGETS[target], build / "tools")
    options = ["-DXMEM_BUILD_PYTHON=OFF", "-DXMEM_BUILD_TESTS=ON", "-DXMEM_WARNINGS_AS_ERRORS=ON"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"--toolchain={toolchain}"]
    python = f"-DPython3_EXECUTABLE={sys.executable}"  # runs here, whatever is built
    for command in ([*configure, python, *options], ["cmake", "--build", str(build)]):
        if subprocess.run(command, check=False).returncode != 0:
            return False
    return True


def main(targets: list[str]) -> int:
    """Build for the targets named, or for all others; report each one."""
    if unknown := [target for target in targets if target not in TARGETS]:
        print(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    results = {target: compiles(target) for target in targets or [t for t in TARGETS if t != "linux-x86_64"]}
    for target, good in results.items():
        print(f"{target}: {'compiles' if good else 'does NOT compile'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
