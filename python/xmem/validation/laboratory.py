"""Estimates of measured runs that nobody has estimated yet: the jobs of ``bench/accuracy``, captured here.

The jobs, their captures and the ways to an estimate live in the checkout, not in the package: they need
torch, torchvision and transformers. Their two commands are all that is used of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from xmem.capture import find_torch
from xmem.errors import CaptureError, ConfigError
from xmem.validation.estimates import RowEstimate, read_estimates

_FOLDER = Path("bench") / "accuracy"
# Made by `make accuracy`: the versions of the published runs, their cuDNN among them.
_PUBLISHED_PYTHON = Path(".venv-cuda12") / "bin" / "python"
_STEPS = {"phantom": "phantom", "fitted": "small", "cpu": "full"}


def checkout() -> Path:
    """The checkout with the jobs: that of the current folder, or the one that xmem is installed from.

    Raises:
        ConfigError: There is none.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / _FOLDER / "estimates.py").is_file():
            return root
    raise ConfigError(
        f"--runs without --estimates needs a checkout of xmem, whose {_FOLDER} holds the jobs",
        "start it in one",
    )


def default_cache() -> Path:
    """Where captures are kept between runs of the command."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "xmem-fast" / "accuracy"


def estimate_rows(
    runs: str | os.PathLike[str],
    *,
    python: str | None = None,
    cudnn: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    ways: Sequence[str] = (),
) -> tuple[RowEstimate, ...]:
    """Capture the jobs of a file of runs, those that are not in the cache yet, and estimate each run.

    What the captures report goes to stderr.

    Args:
        runs: The file.
        python: Of the environment that runs the jobs; by default the checkout's with the published versions,
            else this one.
        cudnn: A ``libcudnn.so.9`` to plan convolutions with; by default that of the environment.
        cache: Folder of the captures; by default ``default_cache()``.
        ways: Of estimating; by default ``phantom`` where the environment has a CUDA build of torch, else
            ``fitted``.

    Raises:
        ConfigError: No checkout, no such environment, or a way that it cannot go.
        CaptureError: The commands failed.
    """
    root = checkout()
    chosen = python or _published_python(root)
    build = find_torch([chosen], os.environ)
    if build is None:
        raise ConfigError(
            f"--python {chosen} has no torch", "name a Python whose environment has torch and transformers"
        )
    asked = tuple(ways) or ("phantom" if build.cuda else "fitted",)
    if unknown := [way for way in asked if way not in _STEPS]:
        raise ConfigError(f"unknown --ways {', '.join(unknown)}", f"use some of {', '.join(_STEPS)}")
    if "phantom" in asked and not build.cuda:
        raise ConfigError(
            f"--ways phantom needs a CUDA build of torch, not torch {build.version}",
            "name a Python that has one with --python",
        )
    common = ["--csv", os.fspath(runs), "--python", chosen, "--cache", os.fspath(cache or default_cache())]
    if cudnn is not None:
        common += ["--cudnn", os.fspath(cudnn)]
    with tempfile.TemporaryDirectory(prefix="xmem-") as folder:
        output = Path(folder) / "estimates.csv"
        _run(root, "captures.py", [*common, "--steps", ",".join(dict.fromkeys(_STEPS[way] for way in asked))])
        _run(root, "estimates.py", [*common, "--ways", ",".join(asked), "-o", str(output)])
        return read_estimates(output)


def _published_python(root: Path) -> str:
    published = root / _PUBLISHED_PYTHON
    return str(published) if published.exists() else sys.executable


def _run(root: Path, script: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, str(root / _FOLDER / script), *arguments]
    # What they say is for people who wait, and stdout is for the result.
    status = subprocess.run(command, stdout=sys.stderr.fileno(), check=False).returncode
    if status:
        raise CaptureError(
            f"{_FOLDER / script} ended with status {status}; its message is above, captures made so far stay",
            status,
        )
