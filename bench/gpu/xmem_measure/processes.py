"""The processes that measure, as the visit sees them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmem_measure.nvml import DeviceMemory
from xmem_measure.parts import nsight
from xmem_measure.plan import Run
from xmem_measure.wire import Wire

_TICK_S = 0.001
_IMPORT_TIMEOUT_S = 300
_SETTLING_S = 2.0
_SETTLING_STEP_S = 0.01
_LOG_BYTES = 2000


@dataclass
class Sampled:
    """The device's memory in use while one process had it to itself.

    Attributes:
        source: Who says so.
        before_bytes: Before the process touched the device.
        moments: Bytes beyond that at named moments: ``context``, ``end``.
        peak_bytes: Most bytes beyond that.
        samples: How many times it was read.
        seconds: Over how long.
    """

    source: str
    before_bytes: int
    moments: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    samples: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "before_bytes": self.before_bytes,
            **{f"{name}_bytes": used for name, used in self.moments.items()},
            "peak_bytes": self.peak_bytes,
            "samples": self.samples,
            "seconds": round(self.seconds, 3),
        }


class Child:
    """A process that has been forked for one run and prepares it."""

    def __init__(self, zygote: Zygote, run: Run, config: dict[str, Any], part: str | None = None) -> None:
        """Fork it.

        Args:
            zygote: From what.
            run: What it is for.
            config: What it is asked for.
            part: What to do with it, if that is no part of the plan.
        """
        self.run = run
        self._zygote = zygote
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = zygote.fork(
                {"part": part or run.part, "config": config}, theirs.fileno(), self._log.fileno()
            )
        self._wire = Wire(ours)

    def finish(self, deadline: float, memory: DeviceMemory | None = None) -> dict[str, Any]:
        """Let it have the device, and wait for its result.

        Args:
            deadline: Of ``time.monotonic()``; the process is killed then.
            memory: Read a thousand times a second while the process has the device.
        """
        return finish_together([self], deadline, memory)[0]

    def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> int:
        """Its exit status."""
        self._wire.close()
        return self._zygote.reap(self.pid)

    def last_words(self) -> str:
        """The end of what it printed."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_BYTES))
        return self._log.read().decode(errors="replace").strip()


def finish_together(
    children: list[Child], deadline: float, memory: DeviceMemory | None = None
) -> list[dict[str, Any]]:
    """Let some processes have the device at once, and wait for all their results."""
    results: dict[int, dict[str, Any]] = {}
    waiting = {child._wire.fileno(): child for child in children}
    sampled = None
    began = 0.0
    while waiting:
        if time.monotonic() > deadline:
            for child in waiting.values():
                child.kill()
                results[child.pid] = {"outcome": "timeout", "error": child.last_words()}
            break
        if sampled is not None and memory is not None:
            sampled.peak_bytes = max(sampled.peak_bytes, memory.used_bytes() - sampled.before_bytes)
            sampled.samples += 1
        tick = _TICK_S if sampled else 0.1
        for descriptor in select.select(list(waiting), [], [], tick)[0]:
            child = waiting[descriptor]
            try:
                message = child._wire.receive()
            except EOFError:
                status = child.reap()
                error = f"ended with status {status}: {child.last_words()}"
                results[child.pid] = {"outcome": "failed", "error": error}
                del waiting[descriptor]
                continue
            assert message is not None
            if moment := message.get("moment"):
                if memory is not None and moment == "prepared":
                    sampled, began = Sampled(memory.source, settled_bytes(memory)), time.monotonic()
                elif memory is not None and sampled is not None:
                    sampled.moments[moment] = memory.used_bytes() - sampled.before_bytes
                child._wire.send(go=True)
            else:
                results[child.pid] = message
                child.reap()
                del waiting[descriptor]
    if sampled is not None:
        sampled.seconds = time.monotonic() - began
        results[children[0].pid]["device_memory"] = sampled.to_json()
    return [results[child.pid] for child in children]


def settled_bytes(memory: DeviceMemory) -> int:
    """The memory in use once the driver has taken back what the process before held."""
    deadline = time.monotonic() + _SETTLING_S
    used = memory.used_bytes()
    while True:
        time.sleep(_SETTLING_STEP_S)
        again = memory.used_bytes()
        if again >= used or time.monotonic() > deadline:
            return again
        used = again


class Zygote:
    """The process that every run is forked from."""

    def __init__(self, packages: list[str], *, dry_run: bool) -> None:
        """Start it and wait until it has imported torch and these packages.

        Raises:
            RuntimeError: There is no torch.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "xmem_measure.zygote", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command + ["--dry-run"] * dry_run + packages,
                pass_fds=[theirs.fileno()],
                env=environment(),
                stdout=sys.stderr,
            )
        self._socket = ours
        self._wire = Wire(ours)
        try:
            imported = self._wire.receive(_IMPORT_TIMEOUT_S)
        except EOFError:
            imported = None
        if imported is None:
            raise RuntimeError("torch could not be imported; see above")
        self.versions: dict[str, str] = imported["versions"]
        self.missing: dict[str, str] = imported["missing"]
        if dry_run:
            self.missing["gpu"] = "a dry run has none"
        if dry_run or not nsight.installed():
            self.missing["ncu"] = "Nsight Compute is not on the PATH"

    def fork(self, spec: dict[str, Any], connection: int, log: int) -> int:
        socket.send_fds(self._socket, [json.dumps(spec).encode()], [connection, log])
        return int(self._answer()["pid"])

    def reap(self, pid: int) -> int:
        socket.send_fds(self._socket, [json.dumps({"reap": pid}).encode()], [])
        return int(self._answer()["status"])

    def close(self) -> None:
        """End it and with it all that it forked."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _answer(self) -> dict[str, Any]:
        answer = self._wire.receive()
        assert answer is not None
        return answer


def environment() -> dict[str, str]:
    """That of all processes that measure."""
    folders = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        # Asking CUDA how many devices there are would end forking.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    # Runs are about the defaults.
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        variables.pop(name, None)
    return variables
