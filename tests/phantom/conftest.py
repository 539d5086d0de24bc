"""Programs under the phantom GPU, run with the Pythons of CUDA builds of torch.

``XMEM_PHANTOM_PYTHONS`` names them, separated by colons; ``make test-phantom`` installs two and sets it. Without it
these tests are skipped.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import xmem
from nightly import most_nightly
from xmem.capture import CaptureResult, PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.phantom.environment import phantom_environment, prepare
from xmem.phantom.ledger import ProcessRecord, read_ledger

PYTHONS = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]
# The newest release; the long run takes the others, too.
NEWEST_FIRST = most_nightly(PYTHONS)


# Autograd's worker drops Python objects after a backward pass. On a GPU a program waits for its kernels before it
# ends; here it would meet the end of the interpreter, which aborts.
_REST = "import atexit, time; atexit.register(time.sleep, 0.3)\n"


@dataclass(frozen=True)
class Ran:
    """A finished program: what it printed, and what the ledger says of its processes."""

    stdout: str
    stderr: str
    returncode: int
    processes: list[ProcessRecord]

    @property
    def result(self) -> Any:
        """The last line that the program printed, as JSON."""
        assert self.returncode == 0, self.stderr[-3000:]
        return json.loads(self.stdout.strip().splitlines()[-1])

    def refused(self) -> dict[str, int]:
        """All calls that were refused, of all processes."""
        return {
            name: count for process in self.processes for name, count in process.calls_of("refused").items()
        }


@dataclass(frozen=True)
class Phantom:
    """Runs programs with one Python on a described machine."""

    python: str
    folder: Path

    def run(
        self,
        code: str,
        *arguments: str,
        gpu: str = "rtx-3060",
        devices: int = 1,
        cudnn_library: Path | None = None,
        timeout: float = 240,
        **environment: str,
    ) -> Ran:
        """Run a program given as text; it prints its result as JSON on its last line."""
        script = self.folder / "program.py"
        script.write_text(_REST + textwrap.dedent(code))
        return self.run_command(
            [self.python, str(script), *arguments],
            gpu=gpu,
            devices=devices,
            cudnn_library=cudnn_library,
            timeout=timeout,
            **environment,
        )

    def run_command(
        self,
        command: list[str],
        *,
        gpu: str = "rtx-3060",
        devices: int = 1,
        cudnn_library: Path | None = None,
        timeout: float = 240,
        **environment: str,
    ) -> Ran:
        """Run any command on the machine."""
        prepare(self.folder, [find_device(gpu)] * devices, cudnn_library=cudnn_library)
        finished = subprocess.run(
            command,
            env=phantom_environment(self.folder, {**os.environ, **environment}),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(finished.stdout, finished.stderr, finished.returncode, read_ledger(self.folder / "ledger"))


@pytest.fixture(
    params=NEWEST_FIRST or [pytest.param("", marks=pytest.mark.skip("no CUDA build of torch here"))]
)
def phantom(request: pytest.FixtureRequest, tmp_path: Path) -> Phantom:
    """A machine for one test; with other Pythons than the first each night."""
    return Phantom(request.param, tmp_path)


def torch_version(phantom: Phantom) -> tuple[int, int]:
    """The release of torch that a Python has."""
    code = "from importlib.metadata import version; print(version('torch'))"
    text = subprocess.run([phantom.python, "-c", code], capture_output=True, text=True, check=True).stdout
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def needs_torch(python: str, oldest: tuple[int, int], why: str) -> None:
    """Skip a test on releases that lack what its script calls."""
    if torch_version(Phantom(python, Path())) < oldest:
        pytest.skip(why)


@pytest.fixture
def unused_port() -> str:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run(
    python: str,
    folder: Path,
    script: str | Path,
    *arguments: str,
    gpu: str | None = None,
    gpus: int = 1,
    **options: Any,
) -> tuple[CaptureResult, xmem.Estimate]:
    """Capture a script, given as text or by its path, and estimate it for the GPU that it ran on.

    Args:
        python: A CUDA build's.
        folder: For the script and the trace.
        script: The script.
        arguments: Its own.
        gpu: None for the capture's own choice.
        gpus: How many the machine has.
        options: Of ``capture``.
    """
    if isinstance(script, str):
        path = folder / "train.py"
        path.write_text(textwrap.dedent(script))
    else:
        path = script
    if gpu is not None:
        options["machine"] = PhantomMachine(device=find_device(gpu), count=gpus)
    with Path(os.devnull).open("w") as quiet:
        result = capture(
            [python, str(path), *arguments],
            folder / "trace.json",
            mode="phantom",
            stdout=quiet.fileno(),
            **{"timeout_s": 300, **options},
        )
    return result, xmem.estimate(result.path, gpu=gpu)
