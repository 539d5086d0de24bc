"""Says what a CUDA build of torch needs from CUDA's libraries, and what of it the phantom GPU answers.

Usage: ``phantom_surface.py TORCH_LIB_FOLDER`` with the folder ``torch/lib`` of an installation. Prints for
each CUDA library how many of its functions are needed, how many are covered by the tables in
``csrc/phantom/surface``, and the names of those that are not; exits with 1 if there are any. Run it on a new
release of torch first.

A function is needed when a library of torch has it as an undefined symbol, or names it in a string: functions
of the driver and of NVML are looked up by name.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SURFACE = Path(__file__).resolve().parent.parent / "csrc" / "phantom" / "surface"

# The libraries of CUDA and how the names of their functions begin; the first that fits.
PREFIXES = {
    "cublasLt": r"cublasLt[A-Z]",
    "cublas": r"cublas[A-Z]",
    "cudnn": r"cudnn[A-Z]",
    "cufft": r"cufft[A-Z]",
    "curand": r"curand[A-Z]",
    "cusolver": r"cusolver[A-Z]",
    "cusparseLt": r"cusparseLt[A-Z]",
    "cusparse": r"cusparse[A-Z]",
    "nccl": r"p?nccl[A-Z]",
    "cufile": r"cuFile[A-Z]",
    "nvshmem": r"nvshmem",
    "nvml": r"nvml[A-Z]",
    "cupti": r"cupti[A-Z]",
    "nvrtc": r"nvrtc[A-Z]",
    "nvJitLink": r"(__)?nvJitLink",
    "nvtx": r"nvtx[A-Z]",
    "cute_dsl": r"_cuda?[A-Z]|cuda_dialect_",
    "cudart": r"cuda[A-Z]|__cuda[A-Z]",
    "cuda": r"cu[A-Z]",
}

# Libraries that the phantom leaves alone, and why.
NOT_EMULATED = {
    "cupti": "subscribing and asking for versions works without a GPU; there is simply no activity to report",
    "nvrtc": "compiles for a named architecture on the CPU alone",
    "nvJitLink": "links on the CPU alone",
    "nvtx": "its marks go nowhere unless a profiler is attached",
}

# Strings that are the name of a function, and what looks like one: names of libraries, and constants that the
# linker laid end to end.
_NAMED = re.compile(rb"\0((?:cu|nvml)[A-Z][a-z]+[A-Z][A-Za-z0-9]*(?:_v\d+)?)(?=\0)")
_NO_FUNCTION = re.compile(r"cu(Blas|Dnn|Fft|Rand|Solver|Sparse)|.+cu[A-Z]")


class Coverage(NamedTuple):
    """What torch needs from one library of CUDA."""

    library: str
    needed: frozenset[str]
    missing: frozenset[str]


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def dynamic_symbols(data: bytes) -> tuple[set[str], set[str]]:
    """The dynamic symbols of a shared library.

    Args:
        data: An ELF file of 64 bits, least significant byte first.

    Returns:
        The names of the undefined symbols and those of the defined ones, without their versions.

    Raises:
        ValueError: It is no such file.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file of 64 bits")
    sections_at, entry_bytes, count = struct.unpack_from("<Q10xHH", data, 40)
    sections = []
    for number in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from(
            "<IIQQQQI", data, sections_at + number * entry_bytes
        )
        sections.append(_Section(kind, offset, size, link))
    undefined: set[str] = set()
    defined: set[str] = set()
    for section in sections:
        if section.kind != 11:  # SHT_DYNSYM
            continue
        names_at = sections[section.link].offset
        for at in range(section.offset + 24, section.offset + section.size, 24):  # the first symbol is null
            name_at, _, _, defined_in = struct.unpack_from("<IBBH", data, at)
            begin = names_at + name_at
            name = data[begin : data.index(b"\0", begin)].decode()
            (defined if defined_in else undefined).add(name)
    return undefined, defined


def library_of(name: str) -> str | None:
    """The library of CUDA that a function belongs to by its name, None for any other function."""
    return next((library for library, prefix in PREFIXES.items() if re.match(prefix, name)), None)


def needed_functions(libraries: Iterable[Path]) -> dict[str, frozenset[str]]:
    """What shared libraries need from those of CUDA.

    Args:
        libraries: Files of one installation of torch; what one of them defines is not needed from elsewhere.

    Returns:
        By the library of CUDA, all of them, the names of the functions.
    """
    undefined: set[str] = set()
    defined: set[str] = set()
    for path in libraries:
        data = path.read_bytes()
        needs, has = dynamic_symbols(data)
        undefined |= needs
        defined |= has
        named = {match.group(1).decode() for match in _NAMED.finditer(data)}
        undefined |= {name for name in named if not _NO_FUNCTION.match(name)}
    needed: dict[str, set[str]] = {library: set() for library in PREFIXES}
    for name in undefined - defined:
        if (library := library_of(name)) is not None:
            needed[library].add(name)
    return {library: frozenset(names) for library, names in needed.items()}


def covered_functions() -> frozenset[str]:
    """The functions in the phantom's tables, whatever they answer.

    The suffix of a version is not always part of the name by which a function is looked up:
    ``cuMemGetInfo_v2`` covers ``cuMemGetInfo``.
    """
    names = set()
    for table in SURFACE.glob("*.txt"):
        for line in table.read_text().splitlines():
            words = line.partition("#")[0].split()
            if words and words[0] != "!":
                names |= {words[0], re.sub(r"_v\d+$", "", words[0])}
    return frozenset(names)


def coverage(torch_libraries: Path) -> list[Coverage]:
    """What the libraries in a folder need from each library of CUDA, and what the tables lack of it."""
    needed = needed_functions(sorted(torch_libraries.glob("*.so*")))
    covered = covered_functions()
    return [
        Coverage(library, names, frozenset() if library in NOT_EMULATED else names - covered)
        for library, names in needed.items()
    ]


def main() -> int:
    """Print the table; 1 when something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="torch/lib of an installation")
    rows = coverage(parser.parse_args().folder)
    print(f"{'library':<12}{'needed':>8}{'covered':>9}{'missing':>9}")
    for row in rows:
        if row.library in NOT_EMULATED:
            print(f"{row.library:<12}{len(row.needed):>8}   not emulated: {NOT_EMULATED[row.library]}")
            continue
        found = len(row.needed) - len(row.missing)
        print(f"{row.library:<12}{len(row.needed):>8}{found:>9}{len(row.missing):>9}")
    for row in rows:
        for name in sorted(row.missing):
            print(f"missing from {row.library}: {name}")
    return int(any(row.missing for row in rows))


if __name__ == "__main__":
    sys.exit(main())
