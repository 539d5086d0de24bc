"""Which Python a command will run, and whether its torch is a CUDA build, without importing torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ASK_S = 20.0
# Finds torch without importing it, so that nothing of it runs.
_QUESTION = """
import importlib.util, pathlib
spec = importlib.util.find_spec("torch")
print(pathlib.Path(spec.origin).parent / "version.py" if spec and spec.origin else "")
"""
_PYTHON = re.compile(r"python[0-9.]*$")
_SHEBANG_BYTES = 256


@dataclass(frozen=True)
class TorchBuild:
    """The torch of an interpreter.

    Attributes:
        python: The interpreter.
        version: Such as ``2.12.0+cu130``.
        cuda: Such as ``13.0``; None for a build without CUDA.
    """

    python: str
    version: str
    cuda: str | None


def find_torch(command: Sequence[str], environment: Mapping[str, str]) -> TorchBuild | None:
    """The torch that a command will import; None when that cannot be told or there is none."""
    python = _interpreter(command, environment)
    if python is None:
        return None
    try:
        answer = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout.strip()
        text = Path(answer).read_text() if answer else ""
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", text, re.MULTILINE)
    return TorchBuild(python, version[1], cuda[1] if cuda else None) if version else None


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _interpreter(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The Python of a command: itself, that of a launcher script's first line, or the one on the path."""
    path = environment.get("PATH")
    for word in command:
        if "=" in word and not Path(word).exists():
            continue  # env NAME=VALUE
        found = shutil.which(word, path=path)
        if found is None:
            continue
        if _PYTHON.search(Path(word).name):
            return found
        named = _named_in_first_line(Path(found))
        if named is not None:
            return shutil.which(named, path=path)
    return shutil.which("python", path=path) or shutil.which("python3", path=path)


def _named_in_first_line(script: Path) -> str | None:
    try:
        with script.open("rb") as file:
            line = file.readline(_SHEBANG_BYTES).decode(errors="replace")
    except OSError:
        return None
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    return next((word for word in words if _PYTHON.search(Path(word).name)), None)  # also after /usr/bin/env
