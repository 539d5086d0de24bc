"""Interrupt captures at random moments, once or twice: nothing may stay behind, and old outputs stay whole.

A case starts a capture of a script with children, a daemon and a process that heeds no SIGTERM; sends one of
INT, TERM, QUIT and KILL after a random time, and half of the time another 50 to 500 ms later; then captures a
good script to the same output. After that no process, folder or partial file of either may be left, and where
the interrupted capture wrote nothing, the output from before it has to be as it was.

Usage: python tests/fuzz/interrupt_captures.py --runs N [--first N] [--seed N] [--python CUDA_BUILD]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from command_line import heed_interrupts
from left_behind import processes_of, until

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)
PATIENCE_S = 60.0
PATIENCE_OF_A_WHOLE_RUN_S = 600.0
TRAIN = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8, device=device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(4, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CHILDREN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "300"], start_new_session=True)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", stubborn])
"""
LINGER = "time.sleep(float(sys.argv[1]))\n"


def capture(folder: Path, mode: str, python: str, script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a capture of a script to ``trace.json`` in the folder."""
    file = folder / "script.py"
    file.write_text(script)
    line = [
        sys.executable,
        "-m",
        "xmem.cli.main",
        "capture",
        "--mode",
        mode,
        "-o",
        str(folder / "trace.json"),
    ]
    return subprocess.Popen(
        [*line, "--", python, str(file), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_interrupts,
    )


def try_case(chance: random.Random, folder: Path, mode: str, python: str) -> str | None:
    """Interrupt a capture; return what stayed behind, None for nothing."""
    output = folder / "trace.json"
    output.write_bytes(b"from before")
    linger = chance.choice([0.0, 300.0])
    process = capture(folder, mode, python, CHILDREN + TRAIN + LINGER, str(linger))
    sent = [chance.choice(SIGNALS)]
    time.sleep(chance.uniform(0.1, 6.0))
    process.send_signal(sent[0])
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0.05, 0.5))
        sent.append(chance.choice(SIGNALS))
        process.send_signal(sent[1])
    try:
        status = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{mode}: {[each.name for each in sent]}: it does not end"
    what = f"{mode}: {[each.name for each in sent]}, status {status}"
    if (
        status != 0
        and output.read_bytes() not in (b"from before",)
        and not output.read_bytes().endswith(b"}\n")
    ):
        return f"{what}: the output from before is damaged"
    if not until(lambda: not processes_of(folder), PATIENCE_S):
        return f"{what}: {processes_of(folder)}"
    again = capture(folder, mode, python, TRAIN)
    try:
        if again.wait(PATIENCE_OF_A_WHOLE_RUN_S) != 0:
            return f"{what}: the next capture fails"
    except subprocess.TimeoutExpired:
        again.kill()
        return f"{what}: the next capture does not end"
    left = sorted(path.name for path in folder.iterdir())
    return None if left == ["script.py", "trace.json"] else f"{what}: {left}"


def main() -> int:
    """Run a campaign as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default="", help="a Python with a CUDA build of torch")
    asked = parser.parse_args()
    modes = [("real", sys.executable), ("fake", sys.executable)]
    if asked.python:
        modes.append(("phantom", asked.python))
    failed = 0
    for number in range(asked.first, asked.first + asked.runs):
        chance = random.Random(f"{asked.seed} {number}")
        mode, python = modes[number % len(modes)]
        with tempfile.TemporaryDirectory() as folder:
            if (why := try_case(chance, Path(folder), mode, python)) is not None:
                failed += 1
                print(f"case {number} of seed {asked.seed}: {why}", flush=True)
        if number % 20 == 19:
            print(f"{number + 1 - asked.first} done, {failed} left something behind", flush=True)
    print(f"{asked.runs} interrupted captures, {failed} left something behind")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
