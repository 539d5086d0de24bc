"""The measuring kit is no package of ours: it is found by its folder, as on a GPU machine."""

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path[:0] = [str(BENCH / "gpu"), str(BENCH)]
