"""The cuDNN that a release of PyTorch ships, and those that are here to be asked instead."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import xmem
from xmem.errors import ConfigError
from xmem.records import dataclass

LIBRARY_VARIABLE = "XMEM_CUDNN"
"""Environment variable that names the library to ask; empty: none, and nothing is asked."""

FIRST_ABLE = (9, 0)
"""Since then cuDNN plans without a device: described, or from 9.0 to 9.7 by the handle that it is given."""

FIRST_EXACT = (9, 8)
"""Since then the plans are those of a real device; before, some of them rest on what real runs showed."""

TESTED = (9, 20, 0)
"""The newest that a supported release of PyTorch brings; what the extras ``cudnn`` end with."""

_LIBRARY = "libcudnn.so.9"
# Libraries that cuDNN opens by name; the dynamic linker finds them once they are loaded.
_OPENED_BY_IT = ("libcudart.so.1*", "libnvrtc.so.1*", "libcublasLt.so.1*", "libcublas.so.1*")


@dataclass(frozen=True)
class Bundled:
    """The cuDNN that ships with a release of PyTorch.

    Attributes:
        version: Major, minor, patch.
        cuda_major: Major version of the CUDA that the wheel is built for.
    """

    version: tuple[int, int, int]
    cuda_major: int


# What the default Linux wheels of the package index require (`Requires-Dist: nvidia-cudnn-cu12==9.1.0.70`),
# by the first release that does; wheels for another CUDA may ship another. 2.13: as installed.
_BUNDLED = (
    ((2, 12), Bundled((9, 20, 0), 13)),
    ((2, 11), Bundled((9, 19, 0), 13)),
    ((2, 8), Bundled((9, 10, 2), 12)),
    ((2, 7), Bundled((9, 5, 1), 12)),
    ((2, 4), Bundled((9, 1, 0), 12)),
    ((2, 1), Bundled((8, 9, 2), 12)),
)


def bundled_with(torch_version: tuple[int, int]) -> Bundled:
    """Return the cuDNN that a release of PyTorch ships; for releases older than all known, the oldest
    one's."""
    return next((bundled for first, bundled in _BUNDLED if torch_version >= first), _BUNDLED[-1][1])


@dataclass(frozen=True)
class CudnnLibrary:
    """A libcudnn that may be asked.

    Attributes:
        path: Path of ``libcudnn.so.9``.
        version: Version given by its package; None if there is no package, and the library itself tells.
        cuda_major: Major version of the wheel's CUDA, 0 if unknown.
    """

    path: Path
    version: tuple[int, int, int] | None
    cuda_major: int = 0

    def loaded_before(self) -> list[Path]:
        """Return the CUDA libraries that lie beside it or in this Python's own packages."""
        folders = [self.path.parent, *_package_folders([*self.path.parents[2:3], *_own_packages()])]
        return [
            found for pattern in _OPENED_BY_IT for folder in folders for found in sorted(folder.glob(pattern))
        ]


def find_libraries(torch_version: tuple[int, int]) -> tuple[CudnnLibrary, ...]:
    """Return the libraries to ask for a release of PyTorch, the best first; the next is for when one fails.

    If `LIBRARY_VARIABLE` names one, that one alone; otherwise, of the installed ones that plan without a
    device, the one that the release ships, and then the others by how close they are.

    Raises:
        ConfigError: There is no such file.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named is not None:
        return (library_at(named),) if named else ()
    wanted = bundled_with(torch_version).version
    able = [library for library in installed_libraries() if (library.version or (0,)) >= FIRST_ABLE]
    return tuple(sorted(able, key=lambda library: _distance(library.version, wanted)))


def way_out(failing: CudnnLibrary) -> str:
    """Say what to do if a library cannot plan, leaving out what was done already."""
    installed = installed_libraries()
    mine = next((library for library in installed if library.path == failing.path), None)
    if mine is None:
        return (
            "name another with --cudnn"
            if installed
            else "install one that can with `pip install xmem-fast[cudnn]`, or name another with --cudnn"
        )
    if mine.version == TESTED:
        return "name another with --cudnn"
    wheel = f"nvidia-cudnn-cu{mine.cuda_major}=={'.'.join(map(str, TESTED))}.*"
    return f"install one that was tested with `pip install '{wheel}'`, or name another with --cudnn"


def driver_stand_in() -> Path | None:
    """A ``libcuda.so.1`` without a GPU, for libraries that do not load without one: the phantom GPU's."""
    return _of_phantom("libcuda.so.1")


def helper_program() -> Path | None:
    """The program that opens a libcudnn, which is the phantom GPU's too; None where it was not built."""
    return _of_phantom("xmem_phantom_cudnn")


def _of_phantom(name: str) -> Path | None:
    places = (Path(entry) / "phantom" / name for entry in xmem.__path__)
    return next((place for place in places if place.is_file()), None)


def library_at(path: str | os.PathLike[str]) -> CudnnLibrary:
    """Return the library at this path.

    Raises:
        ConfigError: There is no such file.
    """
    found = Path(path)
    if not found.is_file():
        raise ConfigError(
            f"there is no cuDNN library {path}",
            f"name the path of a {_LIBRARY}, such as nvidia/cudnn/lib/{_LIBRARY}",
        )
    return CudnnLibrary(found.absolute(), _version_of_wheel(found.absolute()))


def installed_libraries() -> list[CudnnLibrary]:
    """Return the libraries of the wheels beside this package (extra ``cudnn``), newest CUDA first."""
    # Where the wheels put it, not by importlib.metadata, which takes 15 ms and imports all of email.
    places = [Path(folder) / "nvidia" / "cudnn" / "lib" / _LIBRARY for folder in dict.fromkeys(sys.path)]
    files = [file.absolute() for file in places if file.is_file()]
    found = []
    for cuda_major in (13, 12):
        wheels = ((file, wheel) for file in files for wheel in _wheels_of(file, str(cuda_major)))
        if first := next(wheels, None):
            file, wheel = first
            found.append(CudnnLibrary(file, _version_of(wheel.partition("-")[2]), cuda_major))
    return found


def _version_of_wheel(path: Path) -> tuple[int, int, int] | None:
    """Read the version from the metadata beside ``nvidia/cudnn/lib/libcudnn.so.9``, if a wheel installed
    it."""
    wheels = _wheels_of(path, "*")
    return _version_of(wheels[0].partition("-")[2]) if len(wheels) == 1 else None


def _wheels_of(path: Path, cuda_major: str) -> list[str]:
    """Return the names of the metadata of wheels that bring ``nvidia/cudnn/lib/libcudnn.so.9``."""
    packages = path.parents[3] if len(path.parents) > 3 else path.parent
    return [folder.name for folder in packages.glob(f"nvidia_cudnn_cu{cuda_major}-*.dist-info")]


def _version_of(text: str) -> tuple[int, int, int]:
    major, minor, patch = (int(number) for number in re.findall(r"\d+", f"{text}.0.0")[:3])
    return major, minor, patch


def _distance(version: tuple[int, int, int] | None, wanted: tuple[int, int, int]) -> list[int]:
    return [abs(part - other) for part, other in zip(version or (0, 0, 0), wanted, strict=True)]


def _own_packages() -> Iterator[Path]:
    yield from (folder for path in sys.path if (folder := Path(path) / "nvidia").is_dir())


def _package_folders(roots: Sequence[Path]) -> list[Path]:
    """Return the folders of libraries under ``nvidia``, one per wheel."""
    return [folder for root in roots for folder in sorted(root.glob("*/lib"))]
