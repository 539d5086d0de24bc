"""Turns the tables of this folder into the exports that need no code of their own.

A table lists the functions of one CUDA library, a line each: name, fidelity, behaviour. Fidelity says how
far the answer is from a real GPU's, for memory: ``faithful``, ``approximate`` or ``refused``. Behaviour
says where the answer comes from: ``written`` (a source file of this library), ``succeeds`` (returns 0 and
does nothing), ``refused`` (returns the library's "not supported"), ``=NAME`` (the same as another
function), and for the libraries with handles ``creates`` (an object, through the first argument),
``destroys`` (the first argument) and ``computes`` (returns 0; counts as a kernel on the stream of the
handle that is the first argument). ``real`` functions are not exported: the library of the CUDA
installation answers, for it needs no GPU. Headers start with ``!``: ``! library NAME`` and ``! refusal
CODE``.

Usage: ``generate.py OUTPUT_FOLDER``; writes ``surface.hpp``, ``surface.cpp`` and ``phantom_functions.tsv``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

FIDELITIES = ("faithful", "approximate", "refused")
BEHAVIOURS = ("written", "succeeds", "refused", "creates", "destroys", "computes", "real")
MOST_FUNCTIONS = 4096


class Function(NamedTuple):
    """One line of a table."""

    name: str
    library: str
    fidelity: str
    behaviour: str
    refusal: int


def read_tables(folder: Path) -> list[Function]:
    """All tables of a folder, in the order of their file names.

    Raises:
        ValueError: A line is invalid, or a function is listed twice.
    """
    functions: dict[str, Function] = {}
    for path in sorted(folder.glob("*.txt")):
        for function in read_table(path):
            if function.name in functions:
                raise ValueError(f"{path.name}: {function.name} is listed twice")
            functions[function.name] = function
    for function in functions.values():
        if function.behaviour.startswith("=") and function.behaviour[1:] not in functions:
            raise ValueError(
                f"{function.name} is to be the same as {function.behaviour[1:]}, which no table lists"
            )
    if len(functions) > MOST_FUNCTIONS:
        raise ValueError(f"{len(functions)} functions; the ledger has room for {MOST_FUNCTIONS}")
    return list(functions.values())


def read_table(path: Path) -> list[Function]:
    """One table.

    Raises:
        ValueError: A line is invalid.
    """
    header: dict[str, str] = {}
    functions = []
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        words = raw.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "!":
            header[words[1]] = words[2]
            continue
        if len(words) != 3 or words[1] not in FIDELITIES:
            raise ValueError(f"{path.name}:{number}: expected NAME FIDELITY BEHAVIOUR, not {raw!r}")
        name, fidelity, behaviour = words
        if behaviour not in BEHAVIOURS and not behaviour.startswith("="):
            raise ValueError(f"{path.name}:{number}: unknown behaviour {behaviour!r}")
        if (fidelity == "refused" and behaviour != "written") != (behaviour == "refused"):
            raise ValueError(f"{path.name}:{number}: {name} is refused in one column only")
        functions.append(Function(name, header["library"], fidelity, behaviour, int(header["refusal"])))
    return functions


def header_text(functions: list[Function]) -> str:
    """``surface.hpp``: a number for every function, and the names of the libraries."""
    ids = "\n".join(f"  {function.name}," for function in functions)
    libraries = ", ".join(f'"{name}"' for name in sorted({function.library for function in functions}))
    return f"""// Generated from csrc/phantom/surface: do not edit.
#pragma once
#include <cstdint>
namespace xmem::phantom {{
enum class Function : std::uint16_t {{
{ids}
}};
inline constexpr unsigned kFunctionCount = {len(functions)};
inline constexpr const char* kLibraries[] = {{{libraries}}};
const char* name_of(Function function);
}}  // namespace xmem::phantom
"""


def source_text(functions: list[Function]) -> str:
    """``surface.cpp``: the names, and the exports without code of their own."""
    names = "\n".join(f'    "{function.name}",' for function in functions)
    exports = "\n".join(filter(None, map(_export, functions)))
    return f"""// Generated from csrc/phantom/surface: do not edit.
#include "surface.hpp"
#include "libraries/handle.hpp"
#include "machine/calls.hpp"
namespace xmem::phantom {{
namespace {{
const char* const kNames[] = {{
{names}
}};
}}  // namespace
const char* name_of(Function function) {{ return kNames[static_cast<unsigned>(function)]; }}
}}  // namespace xmem::phantom
using xmem::phantom::Function;
{exports}
"""


def _export(function: Function) -> str:
    match function.behaviour:
        case "succeeds" | "creates" | "destroys" | "computes":
            return f"PHANTOM_{function.behaviour.upper()}({function.name})"
        case "refused" if function.library == "cudart":
            return f"PHANTOM_REFUSED_BY_RUNTIME({function.name}, {function.refusal})"
        case "refused":
            return f"PHANTOM_REFUSED({function.name}, {function.refusal})"
        case behaviour if behaviour.startswith("="):
            return f"PHANTOM_SAME_AS({function.name}, {behaviour[1:]})"
    return ""


def main() -> None:
    """Write the three files, each only when it changes."""
    output = Path(sys.argv[1])
    output.mkdir(parents=True, exist_ok=True)
    functions = read_tables(Path(__file__).parent)
    rows = "".join(f"{function.name}\t{function.library}\t{function.fidelity}\n" for function in functions)
    for name, text in (
        ("surface.hpp", header_text(functions)),
        ("surface.cpp", source_text(functions)),
        ("phantom_functions.tsv", rows),
    ):
        path = output / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
