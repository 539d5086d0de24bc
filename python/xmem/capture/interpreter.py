"""Finds out which Python a command will run and whether its torch is a CUDA build, without importing
torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem.errors import ConfigError
from xmem.records import dataclass

_ASK_S = 20.0
# Finds torch without importing it, so that nothing of it runs.
_QUESTION = """
import importlib.util, pathlib
spec = importlib.util.find_spec("torch")
print(pathlib.Path(spec.origin).parent / "version.py" if spec and spec.origin else "")
"""
_PYTHON = re.compile(r"python[0-9.]*(?:\.exe)?$")
_SHEBANG_BYTES = 256


@dataclass(frozen=True)
class TorchBuild:
    """The torch of an interpreter.

    Attributes:
        python: The interpreter.
        version: Its version, such as ``2.12.0+cu130``.
        cuda: Its version of CUDA, such as ``13.0``; None for a build without CUDA.
    """

    python: str
    version: str
    cuda: str | None

    @property
    def cuda_major(self) -> int:
        """The major version of CUDA, such as 13; 0 for a build without CUDA."""
        return int(self.cuda.partition(".")[0]) if self.cuda else 0


def find_torch(command: Sequence[str], environment: Mapping[str, str]) -> TorchBuild | None:
    """Return the torch that a command will import; None if that is unclear or there is none."""
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


def with_python(python: Path, command: Sequence[str]) -> list[str]:
    """Return a command as it should run with a named interpreter.

    ``python`` is the interpreter itself. Programs of its environment (``torchrun``, ``accelerate``,
    ``deepspeed``) run from there, and ``sh`` and the like from the search path, on which the environment
    should come first (:func:`path_with`). Anything else is taken as arguments of the interpreter.

    Raises:
        ConfigError: The command names another interpreter, or a program that only another one has.
    """
    if not command:
        return [str(python)]
    first, *rest = command
    program = Path(first)
    if _PYTHON.fullmatch(program.name):
        if program.name != first and not (program.exists() and program.samefile(_found(python))):
            raise ConfigError(
                f"--python {python} and {first} are two different interpreters", "name only one of them"
            )
        return [str(python), *rest]
    if program.name != first or first.startswith("-") or program.exists():
        return [str(python), *command]
    folder = _found(python).parent
    beside = Path(shutil.which(first, path=str(folder)) or folder / first)  # with .exe on Windows
    if beside.exists():
        # Started by the interpreter, so that it is this one's even where the environment was moved.
        return [str(python), str(beside), *rest] if _named_in_first_line(beside) else [str(beside), *rest]
    elsewhere = shutil.which(first)
    if elsewhere is None:
        return [str(python), *command]  # a script that is not there, as Python will say
    if _named_in_first_line(Path(elsewhere)):
        raise ConfigError(
            f"{first} is not in {_found(python).parent}, the environment of --python",
            "install it there, or leave --python out to use the one on the PATH",
        )
    return list(command)


def path_with(python: Path, path: str | None) -> str:
    """Return the search path with the folder of an interpreter first, as in an activated environment."""
    return os.pathsep.join([str(_found(python).parent), *([path] if path else [])])


def _found(python: Path) -> Path:
    """Find an interpreter, on the path if it is a bare name; links, which lead out of environments, are not
    followed."""
    return Path(os.path.abspath(shutil.which(python) or python))  # noqa: PTH100


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU whose driver is loaded."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _interpreter(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the Python of a command: itself, that of a launcher script's first line, or the one on the
    path."""
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
