"""Run one row: ``xmem-fast run --json`` in a folder of its own, bounded in time and host memory.

What was found is a JSON file per row. A row is run again when it, its scripts or xMem has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stacks.rows import ENVIRONMENTS, SCRIPTS, Row

GIB = 2**30
_END_S = 20.0
_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|Exit)\b")


@dataclass
class Result:
    """What a run of a row showed. Sizes are bytes; None where the run did not get so far."""

    name: str
    digest: str
    """Of the row, the scripts and xMem: another one makes the result stale."""
    date: str
    ended: str
    """``exited``, or what stopped it: ``time`` or ``host memory``."""
    exit_status: int | None
    wall_s: float
    host_peak_bytes: int
    versions: dict[str, str]
    gpu: str = ""
    need_bytes: int | None = None
    interval_bytes: tuple[int, int] | None = None
    measured_reserved_bytes: int | None = None
    replay_reserved_bytes: int | None = None
    context_bytes: int | None = None
    replay_agrees: bool | None = None
    fits: bool | None = None
    assumptions: list[str] = field(default_factory=list)
    diagnostics: list[str] = field(default_factory=list)
    categories: dict[str, int] = field(default_factory=dict)
    message: str = ""
    """What was said where there is no estimate."""

    @property
    def worked(self) -> bool:
        """Whether there is an estimate."""
        return self.ended == "exited" and self.exit_status in (0, 1) and self.need_bytes is not None

    @property
    def reason(self) -> str:
        """Why there is no estimate, on one line: what ended the run, or its message and last error."""
        if self.ended != "exited":
            return f"ended by the runner: {self.ended}"
        lines = [line.strip() for line in self.message.splitlines() if line.strip()] or ["nothing was said"]
        errors = [line for line in lines[1:] if _ERROR.match(line)]
        return "; ".join([lines[0].removeprefix("xmem-fast: "), *errors[-1:]])


def run_row(row: Row, *, environments: Path, folder: Path, again: bool = False) -> Result:
    """Run a row, or read what its last run found if nothing has changed since.

    :param environments: holds a virtual environment under each environment's name.
    :param folder: results, logs and working folders; resumed if it exists.
    :raises FileNotFoundError: the environment is not there.
    """
    environment = environments / row.environment
    python = environment / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: make it with `make test-stacks`")
    file = folder / "results" / f"{row.name}.json"
    digest = _digest(row)
    if not again and (known := read_result(file)) is not None and known.digest == digest:
        return known
    work = folder / "work" / row.name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    variables = _variables(row, environment, work)
    if row.prepare:
        _prepare(row, environment, work, variables)
    result = _run(row, environment, work, variables, digest)
    file.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


def read_result(file: Path) -> Result | None:
    """What a run wrote, or None where there is nothing that this version can read."""
    try:
        return Result(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _run(row: Row, environment: Path, work: Path, variables: dict[str, str], digest: str) -> Result:
    xmem = Path(sys.executable).with_name("xmem-fast")
    estimate_file = work / "estimate.json"
    command = ["nice", "-n", "10", str(xmem), "run", "--gpu", row.gpu, "--gpus", str(row.gpus), *row.options]
    command += ["--json", "-o", str(estimate_file), "--python", str(environment / "bin" / "python"), "--"]
    command += _expand(row.command, environment)
    (work / "command.sh").write_text(f"cd {shlex.quote(str(work))}\n{shlex.join(command)}\n")
    began = time.monotonic()
    with (work / "stdout").open("wb") as stdout, (work / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=work,
            env=variables,
            start_new_session=True,
        )
        ended, peak = _watch(process, row.limit_s, int(row.host_gib * GIB))
    result = Result(
        name=row.name,
        digest=digest,
        date=time.strftime("%Y-%m-%d"),
        ended=ended,
        exit_status=process.returncode,
        wall_s=round(time.monotonic() - began, 1),
        host_peak_bytes=peak,
        versions=_versions(row, environment),
    )
    try:
        estimate = json.loads(estimate_file.read_text())
    except (OSError, ValueError):
        result.message = _what_was_said(work / "stderr")
    else:
        _take(estimate, result)
    return result


def _take(estimate: dict[str, Any], result: Result) -> None:
    measured = estimate.get("measured") or {}
    verdict = estimate.get("verdict") or {}
    interval = estimate.get("interval") or {}
    result.gpu = verdict.get("gpu", "")
    result.fits = verdict.get("fits")
    result.need_bytes = estimate["device_peak_bytes"]
    result.context_bytes = estimate["context_bytes"]
    result.replay_reserved_bytes = estimate["peak_reserved_bytes"]
    result.measured_reserved_bytes = measured.get("peak_reserved_bytes")
    result.replay_agrees = measured.get("replay_agrees")
    if interval:
        result.interval_bytes = (interval["low_bytes"], interval["high_bytes"])
    result.assumptions = [str(text) for text in estimate.get("assumptions") or []]
    result.diagnostics = [str(text) for text in estimate.get("diagnostics") or []]
    result.categories = (estimate.get("breakdown") or {}).get("category") or {}


def _watch(process: subprocess.Popen[bytes], limit_s: float, host_bytes: int) -> tuple[str, int]:
    """Wait for the end of a process, or end it: what ended it, and the most host memory of its family."""
    peak = 0
    deadline = time.monotonic() + limit_s
    why = ""
    while process.poll() is None:
        peak = max(peak, held := sum(_resident(pid) for pid in _family(process.pid)))
        if held > host_bytes:
            why = "host memory"
        elif time.monotonic() > deadline:
            why = "time"
        if why:
            _end(process)
            break
        time.sleep(1)
    return why or "exited", peak


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run as Ctrl-C does, so that it cleans up; what is still there then is killed."""
    family = _family(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        family += _family(process.pid)
    for pid in family:
        if pid != process.pid and not _is_child_of_us(pid, family):
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _is_child_of_us(pid: int, family: list[int]) -> bool:
    """Whether a process seen before is still one of the run: numbers are given again."""
    parent = _parents().get(pid)
    return parent is not None and (parent in family or parent == 1)


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    return parents


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    family, todo = [], [pid]
    while todo:
        family.append(todo.pop())
        todo += children.get(family[-1], [])
    return family


def _resident(pid: int) -> int:
    """The proportional share of a process, bytes: pages that several map are split between them."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _prepare(row: Row, environment: Path, work: Path, variables: dict[str, str]) -> None:
    with (work / "prepare.log").open("wb") as log:
        subprocess.run(
            _expand(row.prepare, environment),
            cwd=work,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=row.limit_s,
            check=True,
        )


def _expand(words: tuple[str, ...], environment: Path) -> list[str]:
    return [word.replace("SCRIPTS", str(SCRIPTS)).replace("BIN", str(environment / "bin")) for word in words]


def _variables(row: Row, environment: Path, work: Path) -> dict[str, str]:
    """The script's environment: nothing of the hub, no trackers, caches in the row's own folder."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VIRTUAL_ENV", "PYTHON", "XMEM"))
    }
    return variables | {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(SCRIPTS),
        "HF_HOME": str(work / "hub"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "2",
        **dict(row.variables),
    }


def _versions(row: Row, environment: Path) -> dict[str, str]:
    """Of torch and the row's packages, as the environment has them."""
    names = ["torch", *(name for name in row.packages if name != "torch")]
    code = (
        "import json, sys\nfrom importlib.metadata import PackageNotFoundError, version\nfound = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    python = str(environment / "bin" / "python")
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _digest(row: Row) -> str:
    """Of what a result depends on. Sources stand for the core, whose build follows them."""
    digest = hashlib.sha256(repr(row).encode())
    named = [
        SCRIPTS / word.removeprefix("SCRIPTS/") for word in (*row.command, *row.prepare) if "SCRIPTS" in word
    ]
    requirements = ENVIRONMENTS / f"{row.environment}.txt"
    root = SCRIPTS.parents[2]
    for file in [
        *named,
        SCRIPTS / "synthetic.py",
        requirements,
        *_sources(root / "python"),
        *_sources(root / "csrc"),
    ]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _sources(folder: Path) -> list[Path]:
    endings = {".py", ".toml", ".cpp", ".hpp"}
    return sorted(
        file for file in folder.rglob("*") if file.suffix in endings and "__pycache__" not in file.parts
    )


def _what_was_said(file: Path, most: int = 4000) -> str:
    """The message of ``xmem-fast``, which is the last; without one, the end of what the script said."""
    lines = file.read_text(errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("xmem-fast: ")]
    return "\n".join(lines[starts[-1] :] if starts else lines[-30:])[-most:]
