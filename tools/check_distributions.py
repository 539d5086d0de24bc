"""Hold wheels and source distributions to what ``docs/releases.md`` says of them.

Usage: check_distributions.py FILE ...

For Linux, ``auditwheel`` must find that a wheel's libraries ask for nothing newer than its tag promises; for
macOS, that is read from the library itself.
Exits with 1 and a line for each thing that is wrong.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import lief
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

lief.logging.disable()  # it tells of what it does not read
MOST_BYTES = 8_000_000
# In the user's process these are found by name; what grafts and renames libraries would break them.
PHANTOM = {
    "libxmem_phantom.so": "libxmem_phantom.so",
    "libcuda.so": "libcuda.so.1",
    "libcuda.so.1": "libcuda.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
}
NOTICES = ("LICENSE", "LLVM.txt", "pybind11.txt", "simdjson.txt", "zig.txt")
GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_")
MACOS = re.compile(r"macosx_(?P<major>\d+)_(?P<minor>\d+)_(?P<processor>arm64|x86_64)")
MACH_O = b"\xcf\xfa\xed\xfe"  # of 64 bits, little-endian
PROCESSORS = {
    "arm64": lief.MachO.Header.CPU_TYPE.ARM64,
    "x86_64": lief.MachO.Header.CPU_TYPE.X86_64,
}
# A folder of the machine that built it would tell of that machine, and differ from build to build.
FOLDERS = re.compile(rb"(?:/home|/root|/Users|/tmp|/work|/builds)/[\w.-]+/[^\0]*")


# What a source distribution needs to build a wheel, and says of itself; CMakeLists.txt names no other folder.
SOURCES = {
    "CHANGELOG.md", "CMakeLists.txt", "LICENSE", "LICENSES", "PKG-INFO", "README.md", "cmake", "csrc",
    "pyproject.toml", "python",
}  # fmt: skip
TEXTS = (
    ".c", ".cmake", ".cpp", ".css", ".csv", ".hpp", ".j2", ".js", ".json", ".map", ".md", ".py", ".pyi",
    ".toml", ".txt", "LICENSE", "PKG-INFO", "py.typed",
)  # fmt: skip


def faults_of(path: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel or a source distribution."""
    return _faults_of_sources(path) if path.name.endswith(".tar.gz") else _faults_of_wheel(path)


def _faults_of_sources(path: Path) -> Iterator[str]:
    with tarfile.open(path) as sources:
        names = [member.name.partition("/")[2] for member in sources if member.isfile()]
    tops = {name.partition("/")[0] for name in names}
    yield from (f"{name} is not needed" for name in sorted(tops - SOURCES))
    yield from (f"{name} is missing" for name in sorted(SOURCES - tops))
    yield from (f"{name} is no source" for name in names if not name.endswith(TEXTS))


def _faults_of_wheel(path: Path) -> Iterator[str]:
    if (size := path.stat().st_size) > MOST_BYTES:
        yield f"it has {size:,} bytes, more than {MOST_BYTES:,}"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        yield from (f"{notice} is missing" for notice in NOTICES if not _has(names, f"/{notice}"))
        if not _has(names, ".dist-info/sboms/xmem-fast.cdx.json"):
            yield "the bill of materials is missing"
        yield from (f"{name} was not to be packed" for name in names if name.endswith((".pyc", ".cpp", ".o")))
        for name in names:
            content = wheel.read(name)
            if not name.endswith(".py") and (found := FOLDERS.search(content)):
                yield f"{name} names a folder of the building machine: {found[0][:80]!r}"
            if content.startswith(b"\x7fELF"):
                yield from (f"{name}: {fault}" for fault in _faults_of_library(name, content))
            elif content.startswith(MACH_O):
                yield from (f"{name}: {fault}" for fault in _faults_for_macos(path.name, content))
        if "linux" in path.name:
            there = {Path(name).name for name in names if name.startswith("xmem/phantom/")}
            yield from (f"xmem/phantom/{name} is missing" for name in PHANTOM.keys() - there)
        elif any("libxmem_phantom" in name for name in names):
            yield "it has a phantom GPU, which runs on Linux alone"
    if "linux" in path.name:
        yield from _faults_of_tag(path)


def _has(names: list[str], ending: str) -> bool:
    return any(name.endswith(ending) for name in names)


def _faults_of_library(name: str, content: bytes) -> Iterator[str]:
    elf = ELFFile(io.BytesIO(content))
    if elf.get_section_by_name(".symtab") or elf.get_section_by_name(".debug_info"):
        yield "it is not stripped"
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    paths = [tag.runpath for tag in dynamic.iter_tags("DT_RUNPATH")]
    if paths not in ([], ["$ORIGIN"]):
        yield f"it looks for libraries in {paths}"
    called = [tag.soname for tag in dynamic.iter_tags("DT_SONAME")]
    if (expected := PHANTOM.get(Path(name).name)) is not None and called != [expected]:
        yield f"its soname is {called}, not {expected}"


def _faults_for_macos(wheel: str, content: bytes) -> Iterator[str]:
    """Yield what would keep macOS from loading a library, as far as can be told from the file.

    Python's own symbols are bound by name alone (ordinal -2), all others to the system's library.
    """
    tag = MACOS.search(wheel)
    binary = lief.MachO.parse(list(content))
    if tag is None or binary is None or len(binary) != 1:
        yield "it is not the library of one processor that the tag promises"
        return
    library = binary.at(0)
    promised = (int(tag["major"]), int(tag["minor"]))
    if (processor := library.header.cpu_type) != PROCESSORS[tag["processor"]]:
        yield f"it is for {processor}, and the tag says {tag['processor']}"
    needed = library.build_version.minos[:2] if library.has_build_version else None
    if needed is None or tuple(needed) > promised:
        yield f"it needs macOS {needed}, and the tag promises {promised}"
    if tag["processor"] == "arm64" and not library.has_code_signature:
        yield "it is not signed, and arm64 loads nothing that is not"
    # With LC_ID_DYLIB comes the name of the library itself.
    loaded = {each.name for each in library.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB}
    if loaded != {"/usr/lib/libSystem.B.dylib"}:
        yield f"it loads {sorted(loaded)}"
    bound = {(bind.library_ordinal, bind.symbol.name) for bind in library.bindings if bind.has_symbol}
    others = [name for ordinal, name in bound if ordinal == -2 and not name.startswith(("_Py", "__Py"))]
    if others:
        yield f"nothing is known to have {', '.join(sorted(others))}"
    if not any(ordinal == -2 for ordinal, _ in bound):
        yield "it asks nothing of Python"
    if "_PyInit__core" not in {symbol.name for symbol in library.exported_symbols}:
        yield "it is no module: PyInit__core is missing"


def _faults_of_tag(path: Path) -> Iterator[str]:
    promised = GLIBC.search(path.name)
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(path)], capture_output=True, text=True, check=False
    )
    found = re.search(r'platform tag:\s+"([^"]+)"', shown.stdout)
    needed = None if found is None else GLIBC.search(found[1])
    if promised is None or needed is None:
        yield f"auditwheel says {(shown.stdout + shown.stderr).strip()!r}"
        return
    print(f"{path.name}: auditwheel finds {found[1] if found else None}")
    if tuple(map(int, needed.groups())) > tuple(map(int, promised.groups())):
        yield f"auditwheel finds that it needs {needed[0]}"


def main(files: list[str]) -> int:
    """Check distributions; print the size of each, and what is wrong."""
    if not files:
        print("no files were named", file=sys.stderr)
        return 2
    wrong = False
    for path in map(Path, files):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
        for fault in faults_of(path):
            wrong = True
            print(f"{path.name}: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
