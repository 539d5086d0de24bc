"""Asks a library about one described GPU, and works out what PyTorch would make of its answers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from xmem.cudnn.cache import PlanCache, Plans, parse_plans
from xmem.cudnn.device_properties import UNKNOWN_NAME, cuda_attributes, cudnn_description
from xmem.cudnn.libraries import CudnnLibrary, driver_stand_in, helper_program, way_out
from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem
from xmem.devices.description import Device
from xmem.errors import XmemError
from xmem.records import dataclass

_PROGRAM = Path(__file__).with_name("planner_process.py")
_DRIVER_VERSION = 13000
_START_S = 60.0
_SILENCE_S = 120.0
_MOST_FAULTS = 8  # each is a new process

# cudnnBackendNumericalNote_t
_TENSOR_CORE, _DOWN_CONVERT_INPUTS, _NONDETERMINISTIC = 0, 1, 4


class PlannerError(XmemError):
    """cuDNN could not be asked; the message says why and what to do."""


def sizes_tried(plans: Plans, dtype: str, settings: PlannerSettings) -> tuple[int, ...]:
    """Return the workspaces in bytes in the order in which PyTorch tries the plans, each size once: a size
    that failed for lack of memory would fail again.

    Source: `Conv_v8.cpp`, `filterEngineConfigs` and `try_configs`, 2.1 to 2.13. Empty when no plan is left.
    """
    dropped = {_DOWN_CONVERT_INPUTS} if dtype == "float32" or not settings.allow_tf32 else set()
    if not settings.allow_tf32:
        dropped.add(_TENSOR_CORE)
    if settings.deterministic:
        dropped.add(_NONDETERMINISTIC)
    return tuple(dict.fromkeys(size for size, notes in plans if dropped.isdisjoint(notes)))


@dataclass(frozen=True)
class Planner:
    """A library and the GPU that it plans for; equal planners give equal plans.

    Attributes:
        library: The library that is asked.
        device: The GPU, as cuDNN reads it.
    """

    library: CudnnLibrary
    device: str

    @classmethod
    def for_device(cls, library: CudnnLibrary, device: Device) -> Planner:
        """Return the planner for a GPU with CUDA."""
        attributes = cuda_attributes(device, 0)
        name = device.full_name or UNKNOWN_NAME
        memory, clusters = device.total_memory_bytes, device.processing_clusters
        described = cudnn_description(name, memory, attributes, 0, _DRIVER_VERSION, clusters)
        return cls(library, json.dumps(described, separators=(",", ":")))

    def plans(
        self, problems: Iterable[ConvolutionProblem], cache: Path | None = None
    ) -> dict[ConvolutionProblem, Plans]:
        """Return cuDNN's plans for each problem: none for those that it refuses; problems that crash its
        process are left out, as long as they are few.

        Args:
            problems: The problems to ask about, each once.
            cache: File of the cache; the user's cache by default.

        Raises:
            PlannerError: The library cannot be asked.
        """
        by_key = {problem.key(): problem for problem in problems}
        if not by_key:
            return {}
        kept = PlanCache(_identity(self.library), self.device, cache)
        known = kept.read(by_key)
        missing = [key for key in by_key if key not in known]
        if missing:
            said = _ask_all(self.library, self.device, missing)
            kept.write(said)
            known |= said
        return {problem: known[key] for key, problem in by_key.items() if key in known}

    def version(self) -> str:
        """Return the version of the library, such as ``9.20.0``.

        Raises:
            PlannerError: The library cannot be asked.
        """
        return _version(self.library, self.device)


def _ask_all(library: CudnnLibrary, device: str, problems: Sequence[str]) -> dict[str, Plans]:
    said: dict[str, Plans] = {}
    left = list(problems)
    faults = 0
    while left:
        with _asking(library, device) as ask:
            try:
                while left:
                    said[left[0]] = ask(left[0])
                    left.pop(0)
            except PlannerError:
                faults += 1
                if faults > _MOST_FAULTS or not said:
                    raise
                left.pop(0)
    return said


def _version(library: CudnnLibrary, device: str) -> str:
    if library.version is not None:
        return ".".join(map(str, library.version))
    with _asking(library, device) as ask:
        number: int = ask.version
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


_RULES = "5"
"""Of what the child process makes of a library's plans: another text where that changes."""


def _identity(library: CudnnLibrary) -> str:
    """Return a text that changes with the library: a file that was replaced counts as another one."""
    status = library.path.stat()
    core = library.path.with_name("libcudnn_graph.so.9")
    size = core.stat().st_size if core.exists() else 0
    return f"{library.path.resolve()} {status.st_size} {status.st_mtime_ns} {size} {_RULES}"


class _Ask:
    """The child process: called with the text of a problem, it returns the problem's plans."""

    def __init__(self, process: subprocess.Popen[str], stderr: IO[str], library: CudnnLibrary) -> None:
        self._process = process
        self._stderr = stderr
        self._library = library
        self.version = 0

    def start(self, device: str) -> None:
        answer = self._exchange(device, _START_S)
        if not isinstance(answer.get("version"), int):
            raise self._failure(str(answer.get("error", "it did not give its version")))
        self.version = answer["version"]

    def __call__(self, problem: str) -> Plans:
        answer = self._exchange(problem, _SILENCE_S)
        if "error" in answer:  # a problem that cuDNN has no engine for: PyTorch would fail
            return ()
        try:
            return parse_plans(answer.get("plans"))
        except ValueError as error:
            raise self._failure(str(error)) from None

    def _exchange(self, line: str, patience_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(patience_s, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            text = self._process.stdout.readline()
        except OSError:
            text = ""
        finally:
            watch.cancel()
        if not text:
            raise self._failure(self._last_words())
        try:
            answer = json.loads(text)
        except ValueError:
            raise self._failure(f"it wrote {text.strip()[:80]!r}") from None
        if not isinstance(answer, dict):
            raise self._failure(f"it wrote {text.strip()[:80]!r}")
        return answer

    def _last_words(self) -> str:
        self._process.kill()
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().strip().splitlines()
        return f"it ended with status {status}" + (f": {said[-1]}" if said else "")

    def _failure(self, reason: str) -> PlannerError:
        return PlannerError(
            f"{self._library.path} cannot plan convolutions ({reason}); {way_out(self._library)}"
        )


@contextmanager
def _asking(library: CudnnLibrary, device: str) -> Iterator[_Ask]:
    helper, stand_in = helper_program(), driver_stand_in()
    if helper is None:
        raise PlannerError(
            "convolutions cannot be planned: xmem_phantom_cudnn is missing; it is built only on Linux"
        )
    command = [
        *(sys.executable, "-I", str(_PROGRAM), str(library.path), str(helper)),
        "" if stand_in is None else str(stand_in),
        *map(str, library.loaded_before()),
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        except OSError as error:
            raise PlannerError(f"{sys.executable} cannot be started: {error.strerror}") from None
        try:
            ask = _Ask(process, stderr, library)
            ask.start(device)
            yield ask
        finally:
            process.kill()
            process.communicate()
