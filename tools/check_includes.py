"""Check that each folder of csrc/ includes only folders that stand before it in the pipeline.

Exits with 1 and one line for every include that points the wrong way.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "csrc"

# What a folder may include besides itself. The folders stand in data order.
MAY_INCLUDE: dict[str, set[str]] = {
    "base": set(),
    "trace": {"base"},
    "blocks": {"base", "trace"},
    "attribution": {"base", "trace", "blocks"},
    "sequence": {"base", "blocks"},
    "allocators": {"base"},
    "simulation": {"base", "sequence", "allocators"},
    "snapshot": {"base"},
    "scaling": {"base"},
    "nccl": set(),
    "bindings": {
        *(
            "base",
            "trace",
            "blocks",
            "attribution",
            "sequence",
            "allocators",
            "simulation",
            "snapshot",
            "scaling",
            "nccl",
        )
    },
}
# The same inside csrc/phantom, which includes nothing else of the project but what NCCL takes.
PHANTOM_MAY_INCLUDE: dict[str, set[str]] = {
    "abi": set(),
    "loading": set(),
    "machine": {"abi", "loading"},
    "memory": {"abi", "machine"},
    "code": set(),
    "runtime": {"abi", "loading", "machine", "memory", "code"},
    "driver": {"abi", "loading", "machine", "memory", "code", "runtime"},
    "libraries": {"abi", "loading", "machine", "memory", "runtime", "nccl"},
    "nvml": {"abi", "machine", "memory"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]+"')
PYTHON = re.compile(r"^\s*#\s*include\s+[<\"](Python\.h|pybind11/)")


def violations(path: Path) -> list[str]:
    """The includes of one file that point the wrong way, as lines for an editor."""
    folder, *below = path.relative_to(ROOT).parts[:-1]
    may_include = MAY_INCLUDE
    if folder == "phantom":
        folder, may_include = below[0], PHANTOM_MAY_INCLUDE
    if folder not in may_include:
        return [f"{path.relative_to(ROOT.parent)}: {folder} is not in the list of layers; add it here"]
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        allowed = match is None or match[1] == folder or match[1] in may_include[folder]
        if not allowed or (PYTHON.match(line) and folder != "bindings"):
            found.append(
                f"{path.relative_to(ROOT.parent)}:{number}: csrc/{folder} may not have {line.strip()}"
            )
    return found


def main() -> int:
    """Check every header and source of csrc/."""
    files = sorted(path for path in ROOT.glob("*/**/*") if path.suffix in {".hpp", ".cpp"})
    found = [violation for path in files for violation in violations(path)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
