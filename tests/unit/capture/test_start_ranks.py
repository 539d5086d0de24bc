"""The starter of ranks: what each process is told, and how a failure of one ends the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import xmem.capture
from xmem.capture import World

NAMES = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK SLURM_PROCID SLURM_NNODES CUDA_VISIBLE_DEVICES"
)
STARTER = Path(xmem.capture.__file__).parent / "child" / "start_ranks.py"


def start(world: World, code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(STARTER), sys.executable, str(script)],
        env={**os.environ, **world.environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_each_rank_gets_the_variables_of_launchers(tmp_path: Path) -> None:
    # A file for each rank: lines that two processes write into one pipe may mix.
    code = (
        "import json, os, pathlib\n"
        f"told = [os.environ[name] for name in {NAMES.split()}]\n"
        "pathlib.Path(__file__).with_name(told[0]).write_text(json.dumps(told))"
    )
    ended = start(World(12, (0, 5), 4), code, tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = [json.loads((tmp_path / rank).read_text()) for rank in ("0", "5")]
    assert told == [
        ["0", "0", "12", "4", "0", "0", "3", "0,1,2,3"],
        ["5", "1", "12", "4", "1", "5", "3", "4,5,6,7"],
    ]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(50)"
    assert start(World(2, (0, 1), 2), code, tmp_path).returncode == 7
    assert time.monotonic() - began < 40


def test_the_signal_that_ended_a_rank_ends_the_starter(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert start(World(2, (1,), 2), code, tmp_path).returncode == -signal.SIGKILL
