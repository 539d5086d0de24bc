"""Packages of CUDA code without wheels, built with the compiler that an environment has as wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem.errors import ConfigError


def toolkit(python: str, folder: Path) -> Path:
    """The folder that the wheels of CUDA 13 share, laid out as an installed toolkit is."""
    if folder.exists():
        return folder
    wheels = Path(printed(python, "-c", "import nvidia.cu13; print(nvidia.cu13.__path__[0])"))
    partial = empty_folder(folder)
    (partial / "lib64").mkdir()
    for name in ("bin", "include", "nvvm"):
        (partial / name).symlink_to(wheels / name)
    for library in (wheels / "lib").glob("*.so.*"):
        # The linker, and code that looks for a toolkit, name a library without its release.
        for name in (library.name, f"{library.name.partition('.so')[0]}.so"):
            (partial / "lib64" / name).symlink_to(library)
    return partial.rename(folder)


def install(
    python: str, packages: Sequence[str], target: Path, cuda: Path, variables: Mapping[str, str]
) -> None:
    """Build packages into a folder to import from. A build that fails or is cut short leaves no such folder.

    Args:
        python: The Python of the environment, which has torch and what else the build imports.
        packages: What pip is asked for: folders of source, or requirements.
        target: The folder.
        cuda: A toolkit.
        variables: Of the build.

    Raises:
        ConfigError: The build fails.
    """
    site_packages = _folder(python, "purelib")
    headers = [str(folder) for folder in (site_packages / "nvidia").glob("*/include")]
    partial = empty_folder(target)
    pip = [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", str(partial)]
    done = subprocess.run(
        [*pip, *packages],
        env={
            **os.environ,
            "CPATH": os.pathsep.join(headers),
            "CUDA_HOME": str(cuda),
            "PATH": os.pathsep.join([str(Path(python).parent), str(cuda / "bin"), os.environ["PATH"]]),
            **variables,
        },
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"{' '.join(packages)} cannot be built", "see what pip printed above")
    partial.rename(target)


def compile_module(python: str, source: Path, module: Path, headers: Path) -> None:
    """Compile a module of Python from one file of C++ that uses torch and headers of CUDA.

    Args:
        python: Of the environment, which has torch, and wheels with the headers of CUDA and CUTLASS.
        source: The file.
        module: What it becomes.
        headers: Folder of the headers that come with it.

    Raises:
        ConfigError: The compiler fails.
    """
    site_packages = _folder(python, "purelib")
    torch = site_packages / "torch"
    folders = [
        headers,
        _folder(python, "include"),
        torch / "include",
        torch / "include" / "torch" / "csrc" / "api" / "include",
        site_packages / "cutlass_library" / "source" / "include",
        *(site_packages / "nvidia").glob("*/include"),
    ]
    libraries = [f"-l{name}" for name in ("torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")]
    done = subprocess.run(
        [
            *("c++", "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-DPy_LIMITED_API=0x03090000"),
            *(f"-I{folder}" for folder in folders),
            *(str(source), "-o", str(module), f"-L{torch / 'lib'}", *libraries),
        ],
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"{source.name} cannot be compiled", "see what the compiler printed above")


def unpack(python: str, requirement: str, folder: Path) -> Path:
    """The source distribution of a package, unpacked into an empty folder: the folder of its files.

    Raises:
        ConfigError: The index does not have it.
    """
    pip = [python, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    done = subprocess.run([*pip, "--dest", str(folder), requirement], check=False)
    archive = next(folder.glob("*.tar.gz"), None)
    if done.returncode or archive is None:
        raise ConfigError(f"{requirement} cannot be downloaded", "see what pip printed above")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def empty_folder(folder: Path) -> Path:
    """An empty folder beside the one that it is renamed to once it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _folder(python: str, name: str) -> Path:
    """A folder of an environment, as ``sysconfig`` names it."""
    return Path(printed(python, "-c", f"import sysconfig; print(sysconfig.get_path('{name}'))"))


def printed(*command: str) -> str:
    """What a command prints, without the line's end."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
