"""Measure what PyTorch needs on this machine's GPU; see README.md beside this file."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# This folder holds the kit, the one above it the workloads.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from xmem_measure.visit import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
