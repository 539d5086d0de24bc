"""An environment with the CUDA build of a script's PyTorch, beside everything else of the script's own.

The phantom GPU needs a CUDA build. Where the script's environment has another one, an overlay is made once: a
virtual environment of the same interpreter, which holds the CUDA build of the same release, and finds all
other packages where they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from xmem.capture.interpreter import TorchBuild, find_torch
from xmem.errors import CaptureError, ConfigError
from xmem.files.cache import cache_folder, make_private

# What is compiled against one build of torch, and has to be replaced with it.
_COMPILED_BESIDE = ("torchvision", "torchaudio")
_READY = "ready.json"
_ASK_S = 60.0
_QUESTION = """
import importlib.metadata, json, site, sys, sysconfig
def release(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
print(json.dumps({
    "folders": [f for f in dict.fromkeys(folders) if f.endswith(("site-packages", "dist-packages"))],
    "beside": {name: release(name) for name in sys.argv[1:]},
}))
"""


def is_possible() -> bool:
    """Return whether the phantom GPU and CUDA builds of torch exist for this machine."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


def require_possible() -> None:
    """Raise where the phantom GPU cannot be.

    Raises:
        ConfigError: It is not for this machine.
    """
    if not is_possible():
        raise ConfigError(
            f"there is no phantom GPU for {platform.system()} on {platform.machine()}: it runs on Linux only",
            "use --mode fake here, or the Dockerfile of docs/phantom.md",
        )


def overlay_python(build: TorchBuild) -> Path | None:
    """Return the interpreter of the overlay for an environment, None if it was not made."""
    folder = _folder(build)
    return folder / "bin" / "python" if (folder / _READY).exists() else None


def make_overlay(python: str, environment: Mapping[str, str]) -> Path:
    """Make the overlay for an environment, unless it is there, and return its interpreter.

    pip tells on stderr what it does; its own settings (index, proxy) hold.

    Args:
        python: The interpreter of the environment.
        environment: Environment variables.

    Raises:
        ConfigError: The environment has no torch, or there is no phantom GPU for this machine.
        CaptureError: The overlay could not be made.
    """
    require_possible()
    build = find_torch([python], environment)
    if build is None:
        raise ConfigError(f"{python} has no torch", "name a Python whose environment has torch with --python")
    if build.cuda is not None:
        return Path(build.python)
    folder = _folder(build)
    make_private(folder.parent)
    with _alone(folder):
        found = overlay_python(build)
        if found is None:
            found = _make(build, folder, environment)
    return found


def _folder(build: TorchBuild) -> Path:
    """Return the folder of an overlay: by the environment, its release of torch and its Python."""
    prefix = Path(build.python).absolute()
    name = hashlib.sha256(f"{prefix}\n{build.version}".encode()).hexdigest()[:16]
    return cache_folder() / "phantom-env" / f"torch{_release(build.version)}-{name}"


def _release(version: str) -> str:
    """Return a version without what tells builds apart: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process makes the same overlay."""
    import fcntl  # not on Windows, where no overlay is made

    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(build: TorchBuild, folder: Path, environment: Mapping[str, str]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
    asked = _ask(build.python, environment)
    python = folder / "bin" / "python"
    _run([build.python, "-m", "venv", str(folder)], environment, "the virtual environment was not made")
    wanted = {"torch": build.version, **{name: v for name, v in asked["beside"].items() if v}}
    # Three equal signs leave out local versions, such as those of builds for the CPU.
    packages = [f"{name}==={_release(version)}" for name, version in wanted.items()]
    own = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    _run(
        [str(python), "-m", "pip", "--disable-pip-version-check", "install", *packages],
        own,
        f"pip could not install {' '.join(packages)}",
    )
    # Found after the overlay's own packages.
    (packages_of_overlay,) = folder.glob("lib/python*/site-packages")
    (packages_of_overlay / "xmem_beside.pth").write_text("".join(f"{path}\n" for path in asked["folders"]))
    made = find_torch([str(python)], own)
    if made is None or made.cuda is None:
        shutil.rmtree(folder, ignore_errors=True)
        found = "none" if made is None else made.version
        raise CaptureError(
            f"pip installed a torch without CUDA ({found}); let pip find the builds of the Python Package "
            "Index, for example with PIP_INDEX_URL and without PIP_FIND_LINKS"
        )
    (folder / _READY).write_text(json.dumps({"torch": made.version, "for": build.python}))
    return python


def _ask(python: str, environment: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    try:
        answer = subprocess.run(
            [python, "-c", _QUESTION, *_COMPILED_BESIDE],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout
        found: dict[str, dict[str, str | None]] = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CaptureError(f"{python} does not answer ({error}); check that it runs") from error
    return found


def _run(command: Sequence[str], environment: Mapping[str, str], failed: str) -> None:
    """Run a command whose output goes to stderr.

    Raises:
        CaptureError: It failed.
    """
    try:
        status = subprocess.run(command, env=dict(environment), stdout=2, check=False).returncode
    except OSError as error:
        raise CaptureError(f"{failed} ({error}); check that {command[0]} runs") from error
    if status:
        raise CaptureError(f"{failed} (exit status {status}); the lines above say why")


def describe_way_to(build: TorchBuild) -> str | None:
    """Return a sentence on how to get PyTorch's own figures for an environment with another build."""
    if not is_possible():
        return None
    python = overlay_python(build)
    if python is not None:
        return f"for PyTorch's own allocator, run it with --python {python}"
    return (
        f"for PyTorch's own allocator, make an environment with its CUDA build once (5 GB on disk): "
        f"xmem-fast phantom-env --python {build.python}"
    )
