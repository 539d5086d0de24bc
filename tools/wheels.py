"""Build wheels for several systems and versions of Python, with the compiler of ``ziglang``.

Usage: wheels.py [--targets NAME ...] [--pythons 3.11 ...] [--headers DIR] [--out DIR]

Only the headers of a version of Python are needed. They are those of a ``python3.X`` on PATH or of pyenv, or
those in ``DIR/python3.X``. What is built is in ``build/wheels/TARGET``: the core and the phantom GPU once a
target, the binding once a version of Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import sbom
from zig_toolchain import TARGETS, write_toolchain

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@dataclass(frozen=True)
class Platform:
    """How wheels of a target are called.

    Attributes:
        tag: The platform's tag. ``auditwheel`` confirms those of Linux (``tools/check_wheels.py``).
        suffix: The name of an extension module after its own, with ``{cp}`` for the version of Python.
    """

    tag: str
    suffix: str


PLATFORMS = {
    "linux-x86_64": Platform("manylinux_2_28_x86_64", ".cpython-{cp}-x86_64-linux-gnu.so"),
    "linux-aarch64": Platform("manylinux_2_28_aarch64", ".cpython-{cp}-aarch64-linux-gnu.so"),
    "macos-arm64": Platform("macosx_11_0_arm64", ".cpython-{cp}-darwin.so"),
    "macos-x86_64": Platform("macosx_11_0_x86_64", ".cpython-{cp}-darwin.so"),
}


def headers_of(version: str, given: Path | None) -> Path | None:
    """Return the folder of a version's ``Python.h``, None where there is none.

    The headers of x86-64 serve the other systems as well: the macros in which the ``pyconfig.h`` of AArch64
    differs change nothing in the headers of an extension, and ``pymacconfig.h`` states what differs on macOS.
    """
    if given is not None and (given / f"python{version}" / "Python.h").exists():
        return given / f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    ask = "import sysconfig; print(sysconfig.get_path('include'))"
    for python in (f"python{version}", *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))):
        try:
            answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):  # not there, or a shim of pyenv that leads nowhere
            continue
        folder = Path(answer.stdout.strip())
        if (folder / "Python.h").exists():
            return folder
    return None


def build(target: str, version: str, headers: Path, out: Path) -> None:
    """Build the wheel of one target for one version of Python.

    Raises:
        subprocess.CalledProcessError: Where it does not build; what went wrong is on stderr.
    """
    folder = ROOT / "build" / "wheels" / target
    toolchain = write_toolchain(TARGETS[target], folder / "tools")
    cp = version.replace(".", "")
    platform = PLATFORMS[target]
    bill = folder / "sbom.json"
    bill.write_text(sbom.bill_of(target) + "\n", encoding="utf-8")
    packages = sysconfig.get_path("platlib")
    # Messages of the compiler's own checks would name folders of the machine that built them.
    no_folders = f"-ffile-prefix-map={ROOT}=. -ffile-prefix-map={packages}=packages"
    defines = {
        "CMAKE_TOOLCHAIN_FILE": toolchain,
        "Python3_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": headers,
        # pybind11 keeps its answer for the first version of Python in the cache.
        "PYTHON_MODULE_DEBUG_POSTFIX": "",
        "PYTHON_MODULE_EXTENSION": platform.suffix.format(cp=cp),
        "PYTHON_IS_DEBUG": "OFF",
        # Of the binding alone, which calls once a stage; the compiler builds its own libraries anew for it.
        "CMAKE_INTERPROCEDURAL_OPTIMIZATION": "OFF",
        "XMEM_SBOM": bill,
        "CMAKE_C_FLAGS": no_folders,
        "CMAKE_CXX_FLAGS": no_folders,
        # Without symbols: there is no strip for all of these systems.
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "CMAKE_EXE_LINKER_FLAGS": "-s",
    }
    settings = {
        "build-dir": folder / "build",
        "wheel.tags": f"cp{cp}-cp{cp}-{platform.tag}",
        "cmake.python-hints": "false",
        "install.strip": "false",
        **{f"cmake.define.{name}": value for name, value in defines.items()},
    }
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    for name, value in settings.items():
        command += ["-C", f"{name}={value}"]
    subprocess.run(command, check=True)


def main(arguments: list[str]) -> int:
    """Build the wheels that are asked for into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--targets", nargs="*", choices=PLATFORMS, default=["linux-x86_64", "linux-aarch64"])
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--headers", type=Path, help="a folder with python3.X/Python.h")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    headers = {version: headers_of(version, options.headers) for version in options.pythons}
    if missing := [version for version, folder in headers.items() if folder is None]:
        print(
            f"There are no headers of Python {', '.join(missing)}. Install it, or name a folder with "
            f"python{missing[0]}/Python.h by --headers, or the versions to build for by --pythons.",
            file=sys.stderr,
        )
        return 2
    for target in options.targets:
        for version, folder in headers.items():
            assert folder is not None
            print(f"{target}, Python {version} ({folder})", file=sys.stderr, flush=True)
            build(target, version, folder, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
