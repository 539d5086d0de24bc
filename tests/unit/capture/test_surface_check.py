"""The step of the build that holds the tables of functions to what the library exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "csrc/phantom/surface"))

import check_exports as check

CHECK = Path(check.__file__)


def checked(tmp_path: Path, exported: list[str]) -> subprocess.CompletedProcess[str]:
    listing = tmp_path / "exported"
    listing.write_text("".join(f"0000 T {name}\n" for name in exported))
    nm = tmp_path / "nm"
    nm.write_text(f"#!/bin/sh\ncat {listing}\n")
    nm.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(CHECK), str(nm), "library.so"], capture_output=True, text=True, check=False
    )


def test_differences_end_the_build_and_are_named(tmp_path: Path) -> None:
    listed = [each.name for each in check.read_tables(CHECK.parent) if each.behaviour != "real"]
    complete = checked(tmp_path, [*listed, "xmem_phantom_card_of"])
    assert (complete.returncode, complete.stderr) == (0, "")
    wrong = checked(tmp_path, [name for name in listed if name != "cudaMalloc"] + ["cudaMallocEverything"])
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines() == [
        "cudaMalloc is in a table of csrc/phantom/surface, and nothing defines it",
        "cudaMallocEverything is exported, and no table of csrc/phantom/surface lists it",
    ]


def test_exports_that_do_not_count_their_own_calls_are_named() -> None:
    source = (
        "PHANTOM_EXPORT int cuA(void** made, int) {\n  note(Function::cuA);\n}\n"
        "PHANTOM_EXPORT cudaError_t cuB() {\n  if (x) return 0;\n  note(Function::cuC);\n}\n"
        "PHANTOM_EXPORT int cuD() {\n  return cuA(nullptr, 0);\n}\n"
        "PHANTOM_EXPORT int xmem_phantom_cards() {\n  return 0;\n}\n"
        "PHANTOM_EXPORT int cudaGetDevice(int* device) {\n  note(Function::cudaGetDevice);\n}\n"
    )
    assert check.miscounted(source) == [
        "cuB counts a call of cuC",
        "cuD counts no call",
        "cudaGetDevice is in _UNCOUNTED, and counts",
    ]
