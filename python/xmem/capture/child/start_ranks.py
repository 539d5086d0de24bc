"""Runs a command once for each rank of ``XMEM_RANKS``, in the environment that a launcher would give it.

    python start_ranks.py COMMAND...

Ends when all have ended, or when one has failed: then the others are ended, and its status is ours. Standard
library only: it runs beside any environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

_POLL_S = 0.05
_PATIENCE_S = 5.0
# Nobody listens there: the store of the job is in each process.
_ADDRESS, _PORT = "127.0.0.1", "29500"


def environment_of(job: dict[str, Any], rank: dict[str, Any]) -> dict[str, str]:
    """Return the variables that say to a process which rank it is, as torchrun and Slurm set them."""
    size, per_node, nodes = str(job["size"]), str(job["per_node"]), str(job["nodes"])
    number, local, node = str(rank["rank"]), str(rank["local_rank"]), str(rank["node"])
    return {
        "RANK": number,
        "LOCAL_RANK": local,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "NODE_RANK": node,
        "NNODES": nodes,
        "ROLE_RANK": number,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": _PORT,
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": number,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": size,
        "SLURM_NTASKS_PER_NODE": per_node,
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NODELIST": "localhost",
        "SLURM_JOB_NODELIST": "localhost",
        "CUDA_VISIBLE_DEVICES": ",".join(str(card) for card in rank["cards"]),
    }


def main() -> int:
    """Run the ranks; return the exit status of the one that failed first, or 0."""
    job = json.loads(os.environ["XMEM_RANKS"])
    processes = [
        subprocess.Popen(sys.argv[1:], env={**os.environ, **environment_of(job, rank)})
        for rank in job["ranks"]
    ]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _end(processes, number))
    running = list(processes)
    while running:
        time.sleep(_POLL_S)
        ended = [process for process in running if process.poll() is not None]
        running = [process for process in running if process not in ended]
        failed = [process.returncode for process in ended if process.returncode != 0]
        if failed:
            _end(running, signal.SIGTERM)
            if failed[0] < 0:  # ended by a signal: so do we, for the parent to see which
                with contextlib.suppress(OSError):  # some cannot be handled
                    signal.signal(-failed[0], signal.SIG_DFL)
                os.kill(os.getpid(), -failed[0])
            return int(failed[0])
    return 0


def _end(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
