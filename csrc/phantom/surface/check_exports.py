"""Holds the tables of this folder to the library that was built: it exports what they list, nothing else.

A written function that no source defines would be missing at run time only, in whoever looks it up; one
that no table lists would be in neither the ledger nor the documentation; one that does not note its own call
would be missing in the ledger.

Usage: ``check_exports.py NM LIBRARY``; exits with 1 and a line for each difference.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from generate import read_tables

# What xMem itself asks of the library.
_OUR_OWN = "xmem_phantom_"

_EXPORT = re.compile(r"^PHANTOM_EXPORT\b[^;{]*?\b(\w+)\([^;{]*\{", re.MULTILINE)
_NOTE = re.compile(r"\bFunction::(\w+)")  # itself, or what refuses or answers in its place

# What the compiler's own code calls around every kernel and at start-up, what is asked after every call, and
# one function that calls another: their counts would say nothing.
_UNCOUNTED = {
    "__cudaPushCallConfiguration",
    "__cudaPopCallConfiguration",
    "__cudaUnregisterFatBinary",
    "__cudaRegisterFunction",
    "__cudaRegisterVar",
    "__cudaRegisterManagedVar",
    "__cudaRegisterHostVar",
    "__cudaRegisterUnifiedTable",
    "__cudaInitModule",
    "__cudaGetKernel",
    "cudaGetDevice",
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cudaGetErrorName",
    "cudaGetErrorString",
    "cuGetErrorName",
    "cuGetErrorString",
    "cudaEventElapsedTime_v2",
}


def exported_by(nm: str, library: str) -> set[str]:
    """Names of the functions that a shared library exports, but for our own."""
    command = [nm, "--dynamic", "--defined-only", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines() if " T " in line or " W " in line}
    return {name for name in names if not name.startswith(_OUR_OWN)}


def miscounted(source: str) -> list[str]:
    """Exports of a source that do not count their own calls, each with what is wrong, in words."""
    exports = [export for export in _EXPORT.finditer(source) if not export[1].startswith(_OUR_OWN)]
    ends = [*(export.start() for export in exports[1:]), len(source)][: len(exports)]
    found = []
    for export, end in zip(exports, ends, strict=True):
        name, noted = export[1], _NOTE.search(source, export.end(), end)
        if noted is not None and noted[1] != name:
            found.append(f"{name} counts a call of {noted[1]}")
        if (noted is None) != (name in _UNCOUNTED):
            found.append(
                f"{name} counts no call" if noted is None else f"{name} is in _UNCOUNTED, and counts"
            )
    return found


def main(nm: str, library: str) -> int:
    """Compare, and say what differs."""
    listed = {
        function.name for function in read_tables(Path(__file__).parent) if function.behaviour != "real"
    }
    exported = exported_by(nm, library)
    tables = "csrc/phantom/surface"
    found = [f"{name} is in a table of {tables}, and nothing defines it" for name in listed - exported]
    found += [f"{name} is exported, and no table of {tables} lists it" for name in exported - listed]
    for path in Path(__file__).parents[1].rglob("*.cpp"):
        found += [f"{path.name}: {wrong}" for wrong in miscounted(path.read_text(encoding="utf-8"))]
    print("\n".join(sorted(found)), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
