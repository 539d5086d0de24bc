"""Answers for jobs, one JSON object a line on stdin and on stdout, in an environment with torch.

    python bench/accuracy/rivals/answer.py {static_analysis|mem_tracker|kitsune|preflight}

Each answer has ``peak_bytes``, or ``note`` for why there is none, and ``seconds``. It needs no xmem.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings
from pathlib import Path

_BENCH = str(Path(__file__).resolve().parents[2])
# This folder holds modules with the names of packages.
sys.path[:] = [
    _BENCH,
    *(entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent),
]

from workloads import Job  # noqa: E402


def main() -> None:
    warnings.simplefilter("ignore")
    rival = importlib.import_module(f"accuracy.rivals.{sys.argv[1]}")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        began = time.perf_counter()
        try:
            answer = {"peak_bytes": rival.peak_bytes(Job(**json.loads(line)))}
        except Exception as error:  # whatever it is, it is why this rival says nothing of this job
            answer = {"note": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
        answer["seconds"] = round(time.perf_counter() - began, 3)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
