"""Write what is linked into a wheel as a CycloneDX bill of materials.

Usage: sbom.py TARGET FILE      a target of zig_toolchain.py, or `here` for what the system's compiler builds

The packages that are installed beside xMem are in the wheel's metadata; this names what is inside of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import time
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from zig_toolchain import TARGETS

ROOT = Path(__file__).resolve().parent.parent


def folder_of(module: str) -> Path:
    """Return the folder of a module of the build environment, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def stated(file: Path, pattern: str) -> str:
    """Return what a file states, such as a version.

    Raises:
        LookupError: The file does not state it.
    """
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise LookupError(f"{file} has no {pattern}")
    return found[1]


def linked(target: str) -> list[Component]:
    """Return what is compiled into the libraries of a wheel."""
    simdjson = stated(folder_of("simdjson") / "simdjson.h", r'^#define SIMDJSON_VERSION "(.+)"')
    notices = "Apache-2.0 AND BSD-3-Clause AND MIT"
    own = [
        part("simdjson", simdjson, notices, "https://github.com/simdjson/simdjson"),
        part("pybind11", version("pybind11"), "BSD-3-Clause", "https://github.com/pybind/pybind11", "pypi"),
    ]
    if target == "here":
        return own
    zig = folder_of("ziglang") / "lib"
    number = int(stated(zig / "libcxx" / "include" / "__config", r"define _LIBCPP_VERSION (\d+)"))
    llvm = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    runtime = "Apache-2.0 WITH LLVM-exception"
    parts = [
        *own,
        *(part(name, llvm, runtime, "https://github.com/llvm/llvm-project")
          for name in ("libc++", "libc++abi", "libunwind")),
        part("zig-compiler-rt", version("ziglang"), "MIT", "https://ziglang.org"),
    ]  # fmt: skip
    if TARGETS[target].system == "Windows":
        parts.append(part("mingw-w64", version("ziglang"), "ZPL-2.1", "https://www.mingw-w64.org"))
    return parts


def part(name: str, its_version: str, license_expression: str, home: str, kind: str = "generic") -> Component:
    """Return one part of the wheel."""
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=its_version,
        bom_ref=f"{name}@{its_version}",
        purl=PackageURL(kind, name=name, version=its_version),
        licenses=[LicenseFactory().make_from_string(license_expression)],
        external_references=[ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(home))],
    )


def bill_of(target: str) -> str:
    """Return the bill of materials of the wheels of a target, as JSON.

    Raises:
        ValueError: It does not follow CycloneDX's schema.
    """
    own = stated(ROOT / "python" / "xmem" / "__init__.py", r'^__version__ = "(.+)"')
    wheel = Component(
        type=ComponentType.LIBRARY,
        name="xmem-fast",
        version=own,
        bom_ref=f"xmem-fast@{own}",
        purl=PackageURL("pypi", name="xmem-fast", version=own),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    parts = linked(target)
    # The same for every build of a version: what is built again is the same to the byte.
    name = f"pkg:pypi/xmem-fast@{own}?platform={target}"
    bom = Bom(components=parts, serial_number=uuid5(NAMESPACE_URL, name))
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time())), UTC)
    bom.metadata.component = wheel
    bom.register_dependency(wheel, parts)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    if (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise ValueError(str(error))
    return text


def main(arguments: list[str]) -> int:
    """Write the bill of materials of a target to a file."""
    target, file = arguments
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(bill_of(target) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
