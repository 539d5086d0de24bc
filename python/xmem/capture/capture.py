"""``capture``: a command in, a complete trace (or none) and a ``CaptureResult`` out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from xmem import __version__
from xmem.capture.extent import Extent
from xmem.capture.failures import Failure, explain_reads, first_failure, in_words
from xmem.capture.notes import note
from xmem.capture.phantom import PhantomMachine, last_calls, read_processes, refused_calls
from xmem.capture.process import Ended, run_process
from xmem.capture.ranks import allocated_peak_bytes, rank_that_needs_most
from xmem.capture.world import MOST_RANKS, World
from xmem.devices.description import Device
from xmem.errors import CaptureError, ConfigError
from xmem.files import system
from xmem.files.scratch import scratch_folder
from xmem.phantom.ledger import ProcessRecord
from xmem.records import dataclass
from xmem.text.units import format_bytes

Mode = Literal["real", "fake", "phantom"]

_CHILD = Path(__file__).parent / "child"


@dataclass(frozen=True)
class DescribedGpu:
    """The GPU that ``torch.cuda`` describes to the script while it runs on the CPU."""

    name: str = "NVIDIA GeForce RTX 3060"
    total_memory_bytes: int = 12622168064
    capability: tuple[int, int] = (8, 6)
    multiprocessors: int = 28

    @classmethod
    def of(cls, device: Device) -> DescribedGpu:
        """Describe a GPU as CUDA would; the default, if it is not CUDA's or known by its size alone."""
        if device.vendor != "NVIDIA" or device.compute_capability is None or device.multiprocessors < 1:
            return cls()
        return cls(
            device.full_name, device.total_memory_bytes, device.compute_capability, device.multiprocessors
        )


@dataclass(frozen=True)
class CaptureResult:
    """A finished capture.

    Attributes:
        path: The trace.
        iterations: Complete iterations in it; fewer than asked for when the script ended before.
        wall_s: How long the command ran, in seconds.
        exit_status: How it ended; None when it had to be ended after the trace was complete.
        metadata: The ``xmem`` object of the trace, without its ``tensors`` and ``lines``.
        processes: In phantom mode, what the processes of the command called and held.
    """

    path: Path
    iterations: int
    wall_s: float
    exit_status: int | None
    metadata: dict[str, Any] = field(repr=False)
    processes: tuple[ProcessRecord, ...] = ()


def capture(
    command: Sequence[str],
    output: str | os.PathLike[str],
    *,
    iterations: int = 3,
    extent: Extent | None = None,
    rank: int | None = None,
    timeout_s: float | None = None,
    stacks: bool = False,
    env: Mapping[str, str] | None = None,
    gpu: DescribedGpu | None = None,
    stdout: int | None = None,
    mode: Mode = "real",
    machine: PhantomMachine | None = None,
    world: World | None = None,
) -> CaptureResult:
    """Run a training command without a GPU and write the profiler trace of its first iterations.

    Args:
        command: What one would type: ``["python", "train.py", "--epochs", "3"]``, a launcher, a shell script.
        output: The trace to write; compressed when it ends in ``.gz``.
        iterations: Optimizer steps to record before the script is stopped.
        extent: How far to record, where a number of iterations is not enough; wins over ``iterations``.
        rank: The rank of a distributed job to trace in the modes phantom and fake; by default the one whose
            GPU needs the most memory, which may take a second run.
        timeout_s: Stop the script after this many seconds; what ran until then is kept if its memory was
            seen.
        stacks: Record every Python frame too (slow, large); modules and source lines are there anyway.
        env: The command's environment; this process's by default.
        gpu: What ``torch.cuda`` describes to the script on the CPU; an RTX 3060 by default.
        stdout: File descriptor for the command's standard output; this process's own by default.
        mode: ``real`` computes everything on the CPU; ``fake`` makes what operators on the CPU would return,
            and computes nothing; ``phantom`` needs a CUDA build of torch and runs it on GPUs that compute
            nothing.
        machine: The GPUs of phantom mode; one RTX 3060 by default. Its values and what is known of them
            hold in fake mode, too.
        world: A distributed job of which only some ranks run, in the modes phantom and fake; the machine of
            phantom mode then has the GPUs of their nodes.

    Raises:
        CaptureError: There is no trace: the script failed, never trained, took too long, did not start.
        ConfigError: A setting is invalid.
    """
    extent = extent or Extent(iterations)
    if not command:
        raise ConfigError("no command was given", "pass one, such as python train.py")
    if mode not in get_args(Mode):
        raise ConfigError(f"unknown mode {mode!r}", f"use one of {', '.join(get_args(Mode))}")
    target = Path(os.path.abspath(output))  # noqa: PTH100 - resolve() would replace a link by what it points to
    _check_output(target)
    if world is not None and mode == "real":
        raise ConfigError(
            "running only some of the ranks is not possible in mode real", "use --mode phantom or fake"
        )
    if world is not None and rank is not None and rank not in world.ranks:
        raise ConfigError(f"rank {rank} cannot be traced, because it does not run", f"add {rank} to --ranks")
    asked = _Asked(
        command, extent, timeout_s, stacks, env, gpu, stdout, mode, machine or PhantomMachine(), world
    )
    if world is not None and rank is None and len(world.ranks) == 1:
        (rank,) = world.ranks  # also where others have to run beside it
    if world is not None and mode == "fake":
        return _capture_one_by_one(asked, target, rank)
    first = _rank_here(asked) if rank is None else rank
    try:
        if world is not None:
            asked, result = _capture_in_world(asked, target, first)
        else:
            result = _capture_rank(asked, target, first)
    except _OtherRanksError as others:
        if rank is not None:
            raise
        first = min(others.ranks)
        note(f"{others.message}; running again to trace rank {first}")
        result = _capture_rank(asked, target, first)
    if mode == "phantom" and rank is None:
        traced = int(result.metadata["phantom"]["ranks"][0]["rank"])
        busiest = rank_that_needs_most(result.metadata["phantom"])
        if busiest != traced:
            note(f"rank {busiest} needs more than rank {traced}; running again to trace it")
            again = _capture_rank(asked, target, busiest)
            return replace(again, wall_s=result.wall_s + again.wall_s)
    return result


def _capture_in_world(asked: _Asked, target: Path, first: int) -> tuple[_Asked, CaptureResult]:
    """Trace a rank of a world of which only some ranks run: with more of them, where the script needs what
    they send, or where the ranks were chosen for the user and others differ."""
    wall_s = 0.0
    while True:
        assert asked.world is not None
        try:
            result = _capture_rank(asked, target, first)
            wider = asked.world.with_unlike(result.metadata.get("phantom", result.metadata))
            reason = "some ranks may need more"
            wall_s += result.wall_s
        except _MissingRanksError as error:
            wider = asked.world.with_ranks(error.ranks)
            if len(wider.ranks) > MOST_RANKS:
                raise
            reason = f"the script needs what ranks send that did not run ({error.failure})"
        if wider == asked.world:
            return asked, replace(result, wall_s=wall_s)
        note(f"{reason}; running again with ranks {', '.join(map(str, wider.ranks))}")
        asked = replace(asked, world=wider)


def _capture_one_by_one(asked: _Asked, target: Path, rank: int | None) -> CaptureResult:
    """Capture ranks on the CPU, each for itself beside those whose objects it needs, and keep the one that
    allocates most. Of ranks that were chosen for the user, the first runs, and those that may differ."""
    world = asked.world
    assert world is not None
    ranks = [world.ranks[0]] if world.is_chosen else list(world.ranks)
    if rank is not None:
        ranks = [rank]
    best, most_bytes, wall_s, held = None, -1, 0.0, {}
    with scratch_folder(f".{target.name}.", target.parent) as folder:
        for number in ranks:  # which may become more meanwhile
            alone = replace(asked, world=replace(world, ranks=(number,), is_chosen=False))
            path = folder / f"rank{number}.{target.name}"
            _, result = _capture_in_world(alone, path, number)
            wall_s += result.wall_s
            if rank is None:
                wider = replace(world, ranks=tuple(sorted(ranks))).with_unlike(result.metadata)
                ranks += [other for other in wider.ranks if other not in ranks]
            held[number] = allocated_peak_bytes(path) if len(ranks) > 1 else 0
            if best is None or held[number] > most_bytes:
                best, most_bytes = result, held[number]
        assert best is not None
        _publish(best.path, target)
    if len(ranks) > 1:
        told = ", ".join(f"rank {number} {format_bytes(peak)}" for number, peak in held.items())
        note(f"the ranks allocate at their peaks: {told}; the answer is about the one that allocates most")
    return replace(best, path=target, wall_s=wall_s)


def _rank_here(asked: _Asked) -> int:
    """Return the rank that the command's environment sets, as a launcher does; 0 if it sets none."""
    if asked.world is not None:
        return asked.world.ranks[0]
    told = (os.environ if asked.env is None else asked.env).get("RANK", "")
    return int(told) if told.isdecimal() else 0


@dataclass(frozen=True)
class _Asked:
    """The arguments of ``capture`` that every run of its command shares."""

    command: Sequence[str]
    extent: Extent
    timeout_s: float | None
    stacks: bool
    env: Mapping[str, str] | None
    gpu: DescribedGpu | None
    stdout: int | None
    mode: Mode
    machine: PhantomMachine
    world: World | None


def _capture_rank(asked: _Asked, target: Path, rank: int) -> CaptureResult:
    """Run the command once and trace one of its ranks."""
    began = time.monotonic()
    machine, mode, world = asked.machine, asked.mode, asked.world
    with _workspace(target) as workspace:
        environment = _child_environment(os.environ if asked.env is None else asked.env)
        environment["XMEM_CAPTURE"] = json.dumps(
            {
                "workspace": str(workspace),
                "mode": mode,
                "extent": asdict(asked.extent),
                "rank": rank,
                "world": None if world is None else world.settings(),
                "stacks": asked.stacks,
                "gzip": target.suffix == ".gz",
                "snapshot": machine.snapshot is not None,
                "launches": machine.launches,
                "behind": machine.behind,
                "has_compiled": machine.has_compiled,
                "keep_init": machine.keep_init,
                "values": dict(machine.values),
                "known_elements": machine.known_elements,
                "imbalance": machine.imbalance,
                "xmem_version": __version__,
                "gpu": asdict(asked.gpu or DescribedGpu()),
            }
        )
        if mode == "phantom":
            cards = machine if world is None else replace(machine, count=world.cards)
            environment = cards.switch_on(workspace, environment)
        command = _resolve(asked.command, environment)
        if world is not None:
            command = world.command(command)
            environment |= world.environment()
        ended = run_process(command, environment, workspace, asked.timeout_s, asked.stdout)
        try:
            status = _outcome(workspace, ended, asked.timeout_s, rank)
        except CaptureError as error:
            if world is not None and (missing := world.missing_in(workspace)):
                raise _missing_ranks(error, missing) from error
            raise
        _publish(Path(status["trace"]), target)
        if mode == "phantom" and machine.snapshot is not None:
            _publish(workspace / "snapshot.pickle", machine.snapshot)
        processes = read_processes(workspace) if mode == "phantom" else ()
    return CaptureResult(
        path=target,
        iterations=status["iterations"],
        wall_s=time.monotonic() - began,
        exit_status=ended.exit_status,
        metadata=status["metadata"],
        processes=processes,
    )


def _check_output(target: Path) -> None:
    """Check the output before anything runs: a long profile that cannot be saved helps nobody."""
    if target.is_dir():
        raise CaptureError(f"{target} is a folder; name the trace file to write")
    if target.exists() and not target.is_file():
        raise CaptureError(
            f"{target} is not a regular file and would be replaced; name the trace file to write"
        )
    if not target.parent.is_dir():
        raise CaptureError(f"{target.parent} does not exist; create the folder or choose another output")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise CaptureError(f"{target.parent} is not writable; choose another output")


_LEAST_DISK_BYTES = 1 << 20


@contextmanager
def _workspace(target: Path) -> Iterator[Path]:
    """Make a private folder beside the output, so that the finished trace can be renamed into place."""
    with ExitStack() as removed:
        try:
            folder = removed.enter_context(scratch_folder(f".{target.name}.", target.parent))
        except OSError as error:
            raise CaptureError(
                f"cannot write to {target.parent} ({error.strerror}); choose another output"
            ) from error
        yield folder


def _child_environment(env: Mapping[str, str]) -> dict[str, str]:
    environment = dict(env)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{_CHILD}{os.pathsep}{path}" if path else str(_CHILD)
    return environment


def _resolve(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    program = command[0]
    found = shutil.which(program, path=environment.get("PATH"))
    if found is None and program.endswith(".py"):
        return _resolve(["python", *command], environment)
    if found is None:
        if program not in ("python", "python3"):
            raise CaptureError(f"{program}: command not found; check its name and PATH")
        found = program = sys.executable
    # Windows searches beside our own interpreter first, and knows no PATH of another environment.
    return [found if system.IS_WINDOWS else program, *command[1:]]


class _MissingRanksError(CaptureError):
    """The command failed after it went on without what ranks send that do not run.

    Attributes:
        ranks: Those ranks.
        failure: How it failed.
    """

    ranks: tuple[int, ...] = ()
    failure: str = ""


class _OtherRanksError(CaptureError):
    """The command ended well, but none of its processes was the rank to trace.

    Attributes:
        ranks: The ranks that were there.
    """

    ranks: frozenset[int] = frozenset()


def _missing_ranks(error: CaptureError, ranks: tuple[int, ...]) -> _MissingRanksError:
    named = ", ".join(map(str, ranks))
    missing = _MissingRanksError(
        f"{error.message}; before that, it went on without what ranks send that do not run: "
        f"add {named} to --ranks",
        error.exit_status,
        error.last_output,
        error.traceback,
    )
    missing.ranks, missing.failure = ranks, error.message.partition("\n")[0]
    return missing


def _outcome(workspace: Path, ended: Ended, timeout_s: float | None, rank: int) -> dict[str, Any]:
    """Return what the captured process reported, or raise the reason why there is no trace."""
    status = _status(workspace)
    if status.get("state") == "failed":
        raise CaptureError(f"{status['message']}", ended.exit_status, ended.last_output)
    complete = status.get("state") == "complete"
    if complete and (status["complete"] or ended.exit_status == 0):
        return status
    failure = first_failure(workspace)
    traceback = failure.traceback if failure else ""
    if ended.timed_out:
        raise CaptureError(
            f"the command did not finish its iterations within {timeout_s:g} s{_where(ended)}"
            + (f" ({failure.in_words()})" if failure else "")
            + "; allow more time, ask for fewer iterations or use a smaller batch",
            None,
            ended.last_output,
            traceback,
        )
    ranks = {int(json.loads(path.read_text())["rank"]) for path in workspace.glob("peer.*.json")}
    if ended.exit_status == 0 and ranks and rank not in ranks:
        there_were = f"rank {rank} cannot be traced: the command only ran {_in_words(ranks)}"
        others = _OtherRanksError(there_were, ended.exit_status, ended.last_output)
        others.ranks = frozenset(ranks)
        raise others
    message = _explain_missing(workspace, ended, failure)
    raise CaptureError(message, ended.exit_status, ended.last_output, traceback)


def _in_words(ranks: set[int]) -> str:
    first, last = min(ranks), max(ranks)
    return f"rank {first}" if first == last else f"ranks {first} to {last}"


def _where(ended: Ended) -> str:
    """Return where a command was when it was ended, as the rest of a sentence; empty if unknown."""
    return f"; it was {ended.last_seen}" if ended.last_seen else ""


def _status(workspace: Path) -> dict[str, Any]:
    """Return the report of the process that trained or, if none did, of the one that held the most memory."""
    reported = workspace / "status.json"
    if reported.exists():
        status: dict[str, Any] = json.loads(reported.read_text())
        return status
    offers = [json.loads(path.read_text()) for path in workspace.glob("offer.*.json")]
    return max(offers, key=lambda offer: int(offer["peak_bytes"]), default={})


def _explain_missing(workspace: Path, ended: Ended, failure: Failure | None) -> str:
    exit_status = ended.exit_status
    imported_torch = (workspace / "torch").exists()
    if "No module named 'torch'" in ended.last_output:
        return "the script's Python has no torch; run the command with the Python of the training environment"
    if ended.host_memory is not None and (lack := ended.host_memory.lack(exit_status, ended.last_output)):
        return lack
    if exit_status is not None and exit_status < 0:
        before = f" after {failure.in_words()}" if failure and not failure.by_signal else ""
        return (
            f"the command was ended by {in_words(-exit_status)}{before}{last_calls(workspace)}"
            f"{_lack_of_memory(ended, -exit_status)}"
        )
    if exit_status != 0:
        return _explain_failure(workspace, ended, failure)
    if not imported_torch:
        return (
            "the command never imported torch where the capture could see it; "
            "name the training script itself, and let it keep PYTHONPATH (do not use python -I, -E or -S)"
        )
    if shutil.disk_usage(workspace).free < _LEAST_DISK_BYTES:
        return f"the disk of {workspace.parent} is full; free some space, or choose another output"
    if any(workspace.glob("stacks.*")):  # a process removes its file when Python ends
        return (
            "a process left at once, as os._exit() does, and its recording was lost with it; "
            "let the script end by itself, or ask for fewer --iterations"
        )
    return (
        "the script ended, but the capture saw no model call and no optimizer step in any process; "
        "capture the command that trains"
    )


def _lack_of_memory(ended: Ended, number: int) -> str:
    """Say whether a signal came for lack of host memory, as the rest of a sentence."""
    if number != getattr(signal, "SIGKILL", None):  # a crash or a request, no lack of memory
        return "; see the output above"
    if ended.host_memory is None:
        return "; if the machine ran out of memory, use fewer processes, a smaller batch or another machine"
    left = format_bytes(ended.host_memory.least_available_bytes)
    return f"; the machine had {left} of memory left, so there is another cause: see the output above"


def _explain_failure(workspace: Path, ended: Ended, failure: Failure | None) -> str:
    """Explain why the script ended with an error; name its CUDA calls where they explain something."""
    exit_status = ended.exit_status
    if failure is None:
        return f"the script itself failed: it ended with exit status {exit_status}; see its output above"
    if failure.by_signal is not None:
        return (
            f"the script failed (exit status {exit_status}): {failure.in_words()}"
            f"{last_calls(workspace, failure.process)}{_lack_of_memory(ended, failure.by_signal)}"
        )
    named = f"(exit status {exit_status}): {failure.in_words()}"
    ours = explain_reads(failure)
    ours += (
        last_calls(workspace, failure.process)
        if failure.of_cuda
        else refused_calls(workspace, failure.process)
    )
    return f"the script failed {named}{ours}" if ours else f"the script itself failed {named}"


def _publish(trace: Path, target: Path) -> None:
    try:
        trace.replace(target)
    except OSError as error:
        raise CaptureError(
            f"the trace could not be moved to {target} ({error.strerror}); choose another output"
        ) from error
