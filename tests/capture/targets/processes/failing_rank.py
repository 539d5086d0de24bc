"""Rank 1 fails in the way that is asked for, while the others wait."""

import os
import signal
import sys
import time

import torch

rank = int(os.environ["RANK"])
if rank == 1:
    torch.zeros(1, device="cuda")
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "hook":
        sys.excepthook = lambda *_: print("my own words", file=sys.stderr)
    if sys.argv[1] == "exit":
        try:
            raise ValueError("the data of rank 1 is not there")
        except ValueError:
            sys.exit(7)
    raise ValueError("the data of rank 1 is not there")
time.sleep(100)  # until the launcher ends it
