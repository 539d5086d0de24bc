"""Install a wheel into an empty environment, as users do, and run every command there.

Usage: wheel_smoke.py WHEELS [--torch SPEC] [--phantom-python PATH] [--keep DIR]

``WHEELS`` is the folder with wheels; the one for the interpreter that runs this is taken. PATH is that
environment alone: no compiler, no git, no tools of the shell. Without ``--torch``, what needs torch is left
out, and the rest reads a trace that is written by hand. With ``--phantom-python``, a Python with a CUDA build
of torch, the README's first command runs on the phantom GPU too.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from every_command import Call, calls, write_files  # noqa: E402

_NEED_TORCH = ("run", "capture", "fit", "max-batch", "sweep")  # some by the model that fit writes


def wheel_for_this(folder: Path) -> Path:
    """Return the wheel for this interpreter and system.

    Raises:
        SystemExit: There is none.
    """
    cp = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    system = {"Linux": "linux", "Darwin": "macosx", "Windows": "win"}[platform.system()]
    machine = platform.machine().lower()
    found = [
        path for path in folder.glob(f"xmem_fast-*-{cp}-{cp}-*{system}*.whl")
        if path.stem.lower().endswith(machine)
    ]  # fmt: skip
    if len(found) != 1:
        sys.exit(f"{folder} has {len(found)} wheels for {cp}, {system}, {machine}; make wheels")
    return found[0]


def install(folder: Path, wheel: Path, torch: str | None) -> Path:
    """Make an empty environment with the wheel; return its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    # torch first: the wheel must run beside it, not choose it.
    for what in (*([shlex.split(torch)] if torch else []), [str(wheel)]):
        subprocess.run([*install, *what], check=True, env=bare(programs))
    return programs


def bare(programs: Path) -> dict[str, str]:
    """Return the variables of a user who has nothing but this environment and the package index."""
    kept = {
        name: value for name, value in os.environ.items()
        if name.startswith(("PIP_", "SSL_", "OPENBLAS_")) or name in ("HOME", "SYSTEMROOT", "LANG", "TMPDIR")
    }  # fmt: skip
    return {**kept, "PATH": str(programs), "CC": "no-compiler", "CXX": "no-compiler"}


def readme_command() -> list[str]:
    """Return the first command of the README after the installation, without the program's name."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^xmem-fast (run .+)$", text, re.MULTILINE)
    assert found is not None, "README.md shows no command"
    return shlex.split(found[1])


def ran(programs: Path, folder: Path, call: Call) -> str | None:
    """Run one call; return what was wrong, None if nothing was."""
    process = subprocess.run(
        [str(programs / "xmem-fast"), *call.arguments],
        cwd=folder, env=bare(programs), capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    words = shlex.join(call.arguments)
    if process.returncode in call.statuses and "Traceback" not in process.stderr:
        print(f"ok    {words}", flush=True)
        return None
    print(f"WRONG {words}", flush=True)
    return f"xmem-fast {words}: exit status {process.returncode}\n{process.stderr[-2000:]}"


def write_trace(folder: Path, programs: Path) -> None:
    """Write the traces that captures would have written, with the installed package itself."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from pathlib import Path\n"
        "from training_sample import training\n"
        "training(64 << 20).write(Path('small.json.gz'))\n"
        "training(96 << 20).write(Path('large.json.gz'))\n"
    )
    subprocess.run([str(programs / "python"), "-c", script], cwd=folder, env=bare(programs), check=True)


def main(arguments: list[str]) -> int:
    """Install and run; report each call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--torch", help="what pip installs as torch")
    parser.add_argument("--phantom-python", type=Path)
    parser.add_argument("--keep", type=Path, help="the folder of the environment, left there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        programs = install(options.keep or folder / "env", wheel_for_this(options.wheels), options.torch)
        write_files(folder)
        first = readme_command()
        asked = list(calls())
        help_text = subprocess.run(
            [str(programs / "xmem-fast"), "--help"],
            env=bare(programs),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        commands = set(re.findall(r"^  ([a-z][a-z-]+)  ", help_text.partition("Commands:")[2], re.MULTILINE))
        faults = [f"no call of {name}" for name in sorted(commands - {call.command for call in asked})]
        if options.torch:
            asked.insert(0, Call(tuple(first)))
        else:
            write_trace(folder, programs)
            asked = [
                call for call in asked
                if call.command not in _NEED_TORCH and "model.xmem" not in call.arguments
            ]  # fmt: skip
        if options.phantom_python:
            at = first.index("--")
            phantom = ["--mode", "phantom", "--python", str(options.phantom_python)]
            asked.append(Call((*first[:at], *phantom, *first[at:])))
        faults += [fault for call in asked if (fault := ran(programs, folder, call)) is not None]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(asked)} calls of {len(commands)} commands, {len(faults)} wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
